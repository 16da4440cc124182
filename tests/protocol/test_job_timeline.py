"""What holds for which step of a job that was changed while it trained."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.data.batches import Batches
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import KEYS, MOST_AMENDMENTS, Amendment, Values, check_key
from dtfm_protocol.job.amendments_file import read_amendments, write_amendments
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning, Training
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard

LENGTH, WINDOWS = 7, 50


def job(**training: Any) -> ResolvedJob:
    values = {"steps": 100, "global_batch": 8, "micro_batch": 2, "sequence_length": LENGTH, "learning_rate": 3e-3}
    tokens = (WINDOWS + 5) * LENGTH + 2  # the evaluation's windows are held out
    return ResolvedJob(
        name="small",
        config={},
        corpus=Corpus(dtype="uint16", vocab_size=257, shards=(Shard(sha256="0" * 64, tokens=tokens),)),
        training=Training.model_validate(values | training),
        evaluation=Evaluation(every=10, sequences=5),
        plan=Planning(),
        checkpoint=Checkpointing(every=20, shadow=5),
    )


def timeline(*changes: tuple[int, Values], **training: Any) -> JobTimeline:
    amendments = [Amendment(number=n, from_step=step, values=values) for n, (step, values) in enumerate(changes, 1)]
    return JobTimeline(job(**training), amendments)


def refusal(*changes: tuple[int, Values]) -> str:
    with pytest.raises(UserError) as error:
        timeline(*changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_job_without_amendments_is_as_its_file_says() -> None:
    plain = timeline()
    assert plain.last_step == plain.plan_end(1) == 100
    assert [plain.samples_before(step) for step in (1, 2, 100)] == [0, 8, 792]
    assert [step for step in range(1, 101) if plain.evaluates(step)] == list(range(10, 101, 10))
    assert [step for step in range(1, 101) if plain.keeps(step)] == [20, 40, 60, 80, 100]
    assert [plain.last_kept(step) for step in (1, 19, 20, 59, 100, 200)] == [0, 0, 20, 40, 100, 100]


def test_values_hold_from_their_step_on_and_the_later_word_counts() -> None:
    changed = timeline(
        (50, {"training.learning_rate": 1e-3}), (20, {"training.learning_rate": 2e-3}), (50, {"training.clip_norm": 0})
    )
    peaks = [changed.settings_at(step).training.learning_rate for step in (1, 19, 20, 49, 50, 99)]
    assert peaks == [3e-3, 3e-3, 2e-3, 2e-3, 1e-3, 1e-3]
    assert (changed.settings_at(49).training.clip_norm, changed.settings_at(50).training.clip_norm) == (1.0, 0)


def test_more_steps_alone_leave_the_schedule_where_it_was() -> None:
    """Today the rate would jump back up from a tenth of its peak."""
    longer = timeline((101, {"training.steps": 200}))
    assert longer.last_step == 200
    assert longer.learning_rate_at(100) == pytest.approx(3e-4)
    assert [longer.learning_rate_at(step) for step in (101, 150, 200)] == [pytest.approx(3e-4)] * 3
    assert longer.jump(101) is None


def test_a_moved_end_of_the_schedule_makes_the_rate_jump_which_is_told() -> None:
    longer = timeline((101, {"training.steps": 200, "training.schedule_end": 200}))
    rates = longer.jump(101)
    assert rates is not None
    assert rates[0] == pytest.approx(3e-4)
    assert rates[1] == pytest.approx(3e-3 * (0.1 + 0.9 * math.cos(101 / 200 * math.pi / 2) ** 2))
    assert timeline((50, {"training.learning_rate": 1e-3})).jump(50) is None  # down
    assert timeline((5, {"training.clip_norm": 2.0}), warmup_steps=10).jump(5) is None  # up, as warm-up does


@given(
    changes=st.lists(st.tuples(st.integers(1, 25), st.sampled_from([2, 4, 6, 10, 24])), max_size=5),
    micro=st.integers(1, 2),
)
@settings(max_examples=15, deadline=None)
def test_a_changed_batch_goes_on_in_the_data_where_the_old_one_stopped(
    changes: list[tuple[int, int]], micro: int
) -> None:
    """No window twice in an epoch, none lost: those of all steps, one after the other, are those of a job of steps of
    one sample each."""
    changed = timeline(
        *((step, {"training.global_batch": batch, "training.micro_batch": micro}) for step, batch in changes)
    )
    one_by_one = Batches.of_plan(timeline(global_batch=1, micro_batch=1, steps=10_000), 1)
    read, first = [], 1
    while first <= 25:
        end = min(25, changed.plan_end(first))
        batches = Batches.of_plan(changed, first)
        for step in range(first, end + 1):
            assert changed.samples_before(step) == len(read)
            read += batches.windows(step)
        first = end + 1
    assert read == [one_by_one.windows(sample + 1)[0] for sample in range(len(read))]
    for epoch in range(len(read) // WINDOWS):
        assert len(set(read[epoch * WINDOWS : (epoch + 1) * WINDOWS])) == WINDOWS


def test_a_plan_ends_before_the_step_that_needs_another_layout_and_no_other() -> None:
    changed = timeline(
        (10, {"training.learning_rate": 1e-3, "evaluation.every": 5, "checkpoint.every": 7, "plan.horizon": 5.0}),
        (30, {"training.global_batch": 16}),
        (40, {"training.steps": 60, "plan.wire.gradients": "bf16"}),
    )
    assert [changed.plan_end(first) for first in (1, 29, 30, 39, 40, 60)] == [29, 29, 39, 39, 60, 60]


def test_fewer_steps_end_the_job_and_what_was_to_come_later_never_holds() -> None:
    shorter = timeline((200, {"training.steps": 300}), (31, {"training.steps": 40}))
    assert shorter.last_step == 40
    assert [shorter.keeps(step) for step in (39, 40)] == [False, True]
    assert timeline((31, {"training.steps": 30})).last_step == 30


def test_the_last_step_of_old_is_evaluated_and_kept_although_more_came_after_it() -> None:
    """The peers that made it knew of no other."""
    longer = timeline((96, {"training.steps": 200, "checkpoint.every": 0, "evaluation.every": 0}), steps=95)
    assert [step for step in range(90, 201) if longer.evaluates(step)] == [90, 95]
    assert [step for step in range(81, 201) if longer.keeps(step)] == [95, 200]
    assert [longer.last_kept(step) for step in (94, 95, 150, 200)] == [80, 95, 95, 200]


@given(
    changes=st.lists(
        st.tuples(
            st.integers(1, 90),
            st.sampled_from(["checkpoint.every", "training.steps"]),
            st.integers(0, 120),
        ),
        max_size=5,
    )
)
@settings(max_examples=30, deadline=None)
def test_the_newest_kept_step_is_the_newest_of_those_that_are_kept(changes: list[tuple[int, str, int]]) -> None:
    changed = timeline(*((step, {key: max(1, value)}) for step, key, value in changes))
    kept = [0] + [step for step in range(1, changed.last_step + 1) if changed.keeps(step)]
    for step in range(1, changed.last_step):
        assert changed.last_kept(step) == max(one for one in kept if one <= step)
    assert changed.last_kept(changed.last_step) == changed.last_step


def test_fewer_evaluation_windows_are_the_first_of_those_held_out() -> None:
    changed = timeline((10, {"evaluation.sequences": 3}))
    before, after = Batches.of_plan(changed, 1), Batches.of_plan(changed, 10)
    assert after.evaluation_windows() == before.evaluation_windows()[:3]
    assert after.evaluation_tokens == 3 * LENGTH
    assert after.training_windows == before.training_windows == WINDOWS


def test_what_cannot_be_is_refused_in_one_line() -> None:
    assert "multiple of micro_batch" in refusal((5, {"training.micro_batch": 3}))
    assert "training.learning_rate" in refusal((5, {"training.learning_rate": -1.0}))
    assert "training.learning_rate" in refusal((5, {"training.learning_rate": "fast"}))
    assert "training.steps" in refusal((5, {"training.steps": 1.5}))
    assert "plan.wire" in refusal((5, {"plan.wire.gradients": "fp4"}))
    assert "held back" in refusal((5, {"evaluation.sequences": 6}))
    assert "65536" in refusal((5, {"training.global_batch": 1 << 18}))
    assert "numbered" in str(_error_of([Amendment(number=2, from_step=5, values={"plan.stages": 2})]))
    many = [Amendment(number=n, from_step=5, values={"plan.stages": 2}) for n in range(1, MOST_AMENDMENTS + 1)]
    assert "at most" in str(_error_of([*many, many[-1]]))


def _error_of(amendments: list[Amendment]) -> UserError:
    with pytest.raises(UserError) as error:
        JobTimeline(job(), amendments)
    return error.value


def test_a_job_that_began_without_evaluation_has_nothing_to_evaluate_on() -> None:
    plain = job().model_copy(update={"evaluation": Evaluation()})
    with pytest.raises(UserError, match="nothing is left"):
        JobTimeline(plain, [Amendment(number=1, from_step=5, values={"evaluation.every": 5})])


def test_keys_that_may_change_are_those_that_leave_text_and_weights_what_they_are() -> None:
    assert {"training.learning_rate", "training.schedule_end", "plan.wire.activations", "checkpoint.shadow"} <= set(
        KEYS
    )
    for key in KEYS:
        check_key(key)
    for key, why in {
        "training.seed": "order of the text",
        "training.sequence_length": "windows",
        "model.hidden_size": "another job",
        "data.text": "another job",
        "name": "another job",
    }.items():
        with pytest.raises(UserError, match=f"{key}.*{why}.*fork"):
            check_key(key)
    with pytest.raises(UserError, match=r"did you mean training\.learning_rate"):
        check_key("learning_rate")


def test_the_file_of_amendments_is_read_as_it_was_written(tmp_path: Any) -> None:
    path = tmp_path / "amendments.jsonl"
    write_amendments(path, ())
    assert not path.exists()
    made = timeline((5, {"training.learning_rate": 1e-3, "plan.stages": "auto", "training.steps": 7})).amendments
    write_amendments(path, made)
    assert read_amendments(path) == made
    path.write_text(path.read_text() + '{"number": 2}\n')
    with pytest.raises(UserError, match=r"line 2: from_step"):
        read_amendments(path)
    with pytest.raises(UserError, match="cannot read"):
        read_amendments(tmp_path / "none")
