"""A volunteer reads what their machine does without knowing what a plan or a stage is."""

import logging

import pytest

from dtfm_coordinator.membership.members import Members
from dtfm_node.control.display import Display
from dtfm_node.control.job_words import job_in_words
from dtfm_node.control.plain_words import READY, WorkShare, doing, sentence, standing, swarm_does
from dtfm_node.limits.availability import BY_ORDER
from dtfm_protocol.control.messages import Phase
from dtfm_protocol.job.amendment import Amendment
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.job.step_words import step_in_words
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.quantities import bytes_in_words, time_in_words
from tests.coordinator.peers import JOB, plan_of

PLAN = Plan(stages=((0, 4), (4, 5), (5, 8)), routes=(("a", "b", "c"),) * 4, idle=("d", "e"), shadows=("d", "d", None))


def row(step: int, seconds: float = 1.0, **more: float) -> StepMetrics:
    return StepMetrics.model_validate(
        {
            "step": step, "loss": 3.21, "tokens": 800, "seconds": seconds, "plan_version": 1, "learning_rate": 1e-3,
            "grad_norm": 1.0, "predicted_seconds": None, **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("peer", "state", "words"),
    [
        ("a", "training", "You compute layers 1-4 of 8."),
        ("b", "training", "You compute layer 5 of 8."),
        ("c", "starting", "Getting ready to compute layers 6-8 of 8."),
        ("d", "idle", "there are enough machines. Yours takes over when one leaves. Until then it keeps a copy"),
        ("e", "idle", "Yours takes over when one leaves."),
        (
            "f",
            "idle",
            "before this machine came, or the others cannot reach it (`dtfm-node doctor`",
        ),
    ],
)
def test_each_part_of_a_plan_is_said_in_layers(peer: str, state: str, words: str) -> None:
    said = doing(state, "stage 1 of 3", WorkShare.of_plan(PLAN, peer))
    assert words in said
    assert "stage" not in said
    assert ("copy" in said) == (peer == "d")


def test_a_machine_that_computes_all_is_told_so() -> None:
    alone = Plan(stages=((0, 8),), routes=(("a",),))
    assert doing("training", "", WorkShare.of_plan(alone, "a")) == "You compute the whole model."


def test_a_spare_that_is_too_small_is_told_that_and_not_that_there_are_enough() -> None:
    said = doing("idle", "plan 1 leaves it", WorkShare.of_plan(PLAN, "e"), "this node offers 1 GB of memory")
    assert said == "Nothing to compute for now: this node offers 1 GB of memory."


@pytest.mark.parametrize(
    ("text", "paused", "why"),
    [
        ("paused by the owner after step 7", True, "the owner has paused the run"),
        ("keeping a checkpoint for the owner: plan 1 ends", False, "the run stands still for a moment, as its owner"),
        ("waiting for 1 more nodes (1 of 2 are ready)", False, "the run waits for more machines"),
        ("waiting for room: the disk is full", False, ""),
    ],
)
def test_a_machine_without_work_is_told_why_the_whole_run_stands(text: str, paused: bool, why: str) -> None:
    phase = Phase.model_validate({"name": "waiting", "text": text, "paused": paused})
    assert standing(phase).startswith(why)
    assert bool(standing(phase)) == bool(why)
    assert standing(Phase(name="training", text=text)) == standing(None) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{BY_ORDER} until 20:27", "Paused by you until 20:27."),
        ("outside the hours 19-23", "Paused: outside the hours 19-23."),
    ],
)
def test_a_pause_says_whose_it_is(text: str, words: str) -> None:
    assert doing("paused", text, WorkShare.of_plan(PLAN, "a")) == words


@pytest.mark.parametrize("state", ["idle", "starting"])
def test_a_run_that_the_owner_has_paused_is_no_plan_that_ends(state: str) -> None:
    said = doing(state, "plan 6 ends with step 106", WorkShare.of_plan(PLAN, "a"), halted=True)
    assert said == "Nothing to compute for now: the owner has paused the run. There is nothing to do for you."


def test_the_end_of_a_plan_is_said_without_plans() -> None:
    said = doing("idle", "plan 6 ends with step 1106", WorkShare.of_plan(PLAN, "a"))
    assert "Step 1,106 is done" in said
    assert "plan" not in said


def test_who_has_left_is_told_how_to_come_back_and_how_to_remove() -> None:
    said = doing("finished", "plan 1", None, option=" --state-dir /x")
    assert "`dtfm-node join --state-dir /x` comes back" in said
    assert "`dtfm-node remove --state-dir /x`" in said


def test_what_breaks_off_asks_nothing_of_the_volunteer() -> None:
    assert "nothing to do for you" in doing("stalled", "x left", WorkShare.of_plan(PLAN, "a"))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([], "Step 411 of 1,500. Loss"),
        ([0.5], "about 9 min left"),
        ([90.0, 0.5], "about 9 min left"),
        ([0.5] * 3 + [90.0] * 2, "about 9 min left"),
    ],
)
def test_the_time_left_goes_by_the_usual_step_and_not_by_a_slow_one(seconds: list[float], words: str) -> None:
    assert words in step_in_words(row(411), 1500, seconds)


def test_the_last_step_has_no_time_left_and_says_what_was_evaluated() -> None:
    assert (
        step_in_words(row(9, eval_loss=4.5), 9, [1.0])
        == "Step 9 of 9. Loss 3.2100, on held-out text 4.5000; 800 tokens/s."
    )


def test_a_step_of_which_nothing_is_learned_has_no_loss() -> None:
    said = step_in_words(row(9).model_copy(update={"tokens": 0, "loss": 0.0}), 9, [1.0])
    assert said == "Step 9 of 9. Nothing is learned: no token of its documents is a target."


@pytest.mark.parametrize("name", ["waiting", "probing", "planning", "training", "done", "failed"])
def test_each_phase_is_a_sentence(name: str) -> None:
    said = swarm_does(Phase.model_validate({"name": name, "text": "all that there is to say"}))
    assert said[0].isupper()
    assert said.endswith(".")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("waiting for 2 more nodes (0 of 2 are ready)", "Waiting until 2 machines are ready; none so far."),
        ("waiting for 1 more nodes (2 of 3 are ready; 1 measuring)", "Waiting until 3 machines are ready; 2 so far."),
        ("waiting for 1 more nodes (0 of 1 are ready)", "Waiting until 1 machine is ready; none so far."),
    ],
)
def test_who_is_waited_for_is_said_in_machines(text: str, words: str) -> None:
    """As the coordinator's own words have it."""
    assert swarm_does(Phase.model_validate({"name": "waiting", "text": text})) == words


def test_the_words_that_are_read_are_those_that_a_coordinator_says() -> None:
    assert swarm_does(Phase(name="waiting", text=Members().waiting_for(2))).startswith("Waiting until 2 machines")


@pytest.mark.parametrize(("text", "words"), [("all 60 steps are done; it is in /x", "Thank you"), ("plan 1", "left")])
def test_the_end_is_thanks_or_a_goodbye_and_no_path_of_the_owners(text: str, words: str) -> None:
    said = doing("finished", text, WorkShare.of_plan(PLAN, "a"))
    assert words in said
    assert "/x" not in said


def test_a_run_that_its_owner_has_ended_is_said_to_have_ended_and_not_to_be_trained() -> None:
    text = "ended by the owner after step 1040 of 2000; the model is in /x"
    assert swarm_does(Phase(name="done", text=text)) == "The owner ended the run after step 1,040."
    said = doing("finished", text, WorkShare.of_plan(PLAN, "a"), option=" --state-dir n")
    assert said == (
        "The owner ended the run after step 1,040. Thank you for your part in it. "
        "`dtfm-node remove --state-dir n` deletes what it keeps."
    )
    assert swarm_does(Phase(name="done", text="all 60 steps are done; it is in /x")) == "The model is trained."


def test_a_newcomer_is_told_as_many_steps_as_the_run_has_now() -> None:
    plan = plan_of("a").model_copy(
        update={"amendments": (Amendment(number=1, from_step=5, values={"training.steps": 1200}),)}
    )
    config = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "vocab_size": 64,
    }
    job = JOB.model_copy(update={"config": config | {"num_attention_heads": 4}})
    assert job_in_words(job).endswith(f"for {JOB.training.steps} steps")
    assert job_in_words(job, plan).endswith("for 1,200 steps")


@pytest.mark.parametrize(("text", "words"), [("", ""), ("a", "A."), ("a!", "A!"), (" b. ", "B.")])
def test_a_sentence_has_a_capital_and_an_end(text: str, words: str) -> None:
    assert sentence(text) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (-1, "0 B"), (999, "999 B"), (999.6, "1 kB"), (12_345, "12.3 kB"), (99_960, "100 kB"), (850e6, "850 MB"),
        (999.6e6, "1 GB"), (1.234e9, "1.23 GB"), (5e18, "5,000 PB"),
    ],
)  # fmt: skip
def test_sizes_are_decimal_with_three_figures_at_most(size: float, words: str) -> None:
    assert bytes_in_words(size) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "less than a minute"), (60, "1 min"), (99 * 60, "99 min"), (99.6 * 60, "2 h"), (47 * 3600, "47 h"),
     (48 * 3600, "2 days"), (1e9, "11,574 days")],
)  # fmt: skip
def test_times_are_as_people_estimate_them(seconds: float, words: str) -> None:
    assert time_in_words(seconds) == words


def test_the_planners_words_are_for_verbose(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "propagate", True)
    display = Display("json")
    with caplog.at_level(logging.DEBUG, log.name):
        display.state("idle", READY)
        display.share(WorkShare.of_plan(PLAN, "a"))
        display.state("starting", "plan 3: 2 pipelines")
        display.state("training", "stage 1 of 3")
        display.sent_bytes = lambda: 1_200_000_000
        display.step(row(411), 1500)
    plain = [one.getMessage() for one in caplog.records if one.levelno >= logging.INFO]
    assert plain[:3] == [
        "Ready; waiting for work.", "Getting ready to compute layers 1-4 of 8.", "You compute layers 1-4 of 8.",
    ]  # fmt: skip
    assert plain[3].startswith("Step 411 of 1,500, about 18 min left.")
    assert plain[3].endswith("Sent 1.2 GB.")
    assert "starting: plan 3: 2 pipelines" in [one.getMessage() for one in caplog.records]
