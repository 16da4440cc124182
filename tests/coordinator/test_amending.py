"""The owner's wishes to change a job: from which step each holds, and why one cannot be."""

from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.allocator.foundations.shapes import check_choices
from dtfm_coordinator.owner.amending import changed_values, described, place, placed_as, steep_rise
from dtfm_coordinator.owner.owner_wishes import Amended
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import Settings, Values
from dtfm_protocol.job.job_timeline import JobTimeline
from tests.protocol.test_job_timeline import job, timeline

FIRST = 1_000.0
"""Unix seconds of the first wish."""


def check(settings: Settings) -> None:
    check_choices(settings.plan, settings.training.micro_batches, 4)


def wish(values: Values, at: float = FIRST, from_step: int | None = None) -> Amended:
    return Amended(at=at, values=values, from_step=from_step)


def placed(one: Amended, resumed: int = 10, recorded: int = 10, before: JobTimeline | None = None) -> JobTimeline:
    result, refused = place(before or timeline(), [one], resumed, recorded, check)
    assert refused == ()
    return result


def refusal(values: Values, from_step: int | None = None, recorded: int = 10) -> str:
    before = timeline()
    result, refused = place(before, [wish(values, from_step=from_step)], recorded, recorded, check)
    assert result is before
    (one,) = refused
    assert "\n" not in one.why
    return one.why


def first_step(changed: JobTimeline) -> int:
    return changed.amendments[-1].from_step


def test_a_wish_holds_from_the_step_after_the_one_with_which_the_plan_begins_or_the_one_it_names() -> None:
    assert first_step(placed(wish({"training.learning_rate": 1e-3}))) == 11
    assert first_step(placed(wish({"training.learning_rate": 1e-3}, from_step=50))) == 50
    assert first_step(placed(wish({"training.learning_rate": 1e-3}, from_step=5))) == 11  # it came too late


def test_steps_that_are_made_anew_after_a_fault_are_made_as_they_were() -> None:
    """A plan that goes back ten steps makes those with the rate, the batch and the codecs that they had."""
    for key, value in {
        "training.learning_rate": 1e-3,
        "training.global_batch": 4,
        "plan.wire.gradients": "bf16",
        "plan.slow_wire": "int8",
    }.items():
        assert first_step(placed(wish({key: value}), resumed=10, recorded=20)) == 21
    for key in ("plan.stages", "plan.replicas", "checkpoint.every"):
        assert first_step(placed(wish({key: 2}), resumed=10, recorded=20)) == 11  # without it there may be no plan


def test_what_a_plan_has_stays_as_it_was_when_the_run_goes_back() -> None:
    once = placed(wish({"training.learning_rate": 1e-3}), resumed=30, recorded=30)
    again, refused = place(once, [wish({"training.learning_rate": 1e-3})], 20, 30, check)
    assert again is once
    assert refused == ()
    assert [again.settings_at(step).training.learning_rate for step in (30, 31)] == [3e-3, 1e-3]


def test_wishes_are_taken_in_their_order_and_each_is_known_again() -> None:
    wishes = [wish({"training.steps": 200}), wish({"training.clip_norm": 0.5}, FIRST + 1, from_step=150)]
    changed, refused = place(timeline(), wishes, 10, 10, check)
    assert refused == ()
    assert [one.number for one in changed.amendments] == [1, 2]
    found = [placed_as(changed, one) for one in wishes]
    assert [one.from_step for one in found if one] == [11, 150]
    assert placed_as(changed, wish({"training.steps": 200}, FIRST + 2)) is None


def test_one_wish_that_cannot_be_keeps_no_other_from_being_fulfilled() -> None:
    wishes = [wish({"training.micro_batch": 3}), wish({"training.clip_norm": 0.5}, FIRST + 1)]
    changed, refused = place(timeline(), wishes, 10, 10, check)
    assert [one.values for one in changed.amendments] == [{"training.clip_norm": 0.5}]
    assert [one.wish for one in refused] == wishes[:1]


def test_why_a_wish_cannot_be_is_said_in_one_line() -> None:
    assert "step 10 is done" in refusal({"training.steps": 9})
    assert "ends with step 100" in refusal({"training.clip_norm": 0.5}, from_step=102)
    assert "holds already" in refusal({"training.steps": 100})
    assert "4 layers" in refusal({"plan.stages": 5})
    assert "micro-batches to share out" in refusal({"plan.replicas": 5})
    assert "multiple" in refusal({"training.global_batch": 9})
    assert "fork" in refusal({"training.seed": 9})
    assert "no such key" in refusal({"training.speed": 9})


def test_a_run_may_be_ended_at_once_and_made_longer_after_its_end() -> None:
    assert placed(wish({"training.steps": 10})).last_step == 10
    assert placed(wish({"training.steps": 200}), resumed=100, recorded=100).last_step == 200


def test_a_change_is_told_with_what_it_was_its_step_and_the_rates_where_these_jump() -> None:
    before = timeline()
    after = placed(wish({"training.steps": 200, "training.schedule_end": 200}), 100, 100)
    lines = described(before, after)
    assert lines[:2] == [
        "training.steps 100 -> 200 from step 101",
        "training.schedule_end 100 -> 200 from step 101",
    ]
    assert "from 0.0003 at step 100 to 0.00163 at step 101" in lines[2]
    assert described(before, placed(wish({"training.steps": 200}), 100, 100)) == [
        "training.steps 100 -> 200 from step 101"
    ]


@pytest.mark.parametrize(
    ("values", "recorded", "words"),
    [
        ({"training.learning_rate": 3.0}, 10, "The learning rate jumps to 1,000 times what it is: "),
        ({"training.learning_rate": 0.03}, 10, "10 times"),
        ({"training.learning_rate": 0.029}, 10, ""),
        ({"training.learning_rate": 3e-9}, 10, ""),
        ({"training.steps": 200}, 100, ""),
        ({"training.clip_norm": 0.5}, 10, ""),
    ],
)
def test_a_rate_that_jumps_far_up_is_worth_a_question(values: Values, recorded: int, words: str) -> None:
    found = steep_rise(timeline(), placed(wish(values), recorded, recorded))
    assert words in found
    assert bool(words) == bool(found)


def test_an_edited_job_file_differs_in_what_was_edited() -> None:
    base = Settings.of(job())
    longer = base._replace(training=base.training.model_copy(update={"steps": 200, "learning_rate": 1e-3}))
    assert changed_values(base, base) == {}
    assert changed_values(base, longer) == {"training.steps": 200, "training.learning_rate": 1e-3}
    ended = base._replace(training=base.training.model_copy(update={"schedule_end": 50}))
    assert changed_values(base, ended) == {"training.schedule_end": 50}
    assert changed_values(ended, base) == {"training.schedule_end": 100}  # the line was taken out


@pytest.mark.parametrize("key", ["training.steps", "training.learning_rate"])
def test_a_key_that_is_fixed_or_unknown_never_gets_into_a_plan(key: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"training.seed": 3, key: 1}
    with pytest.raises(UserError, match=r"training\.seed"):
        JobTimeline(job()).amended(values, 5, FIRST)
