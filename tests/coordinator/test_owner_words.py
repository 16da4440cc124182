"""An owner reads what their coordinator does without knowing what a plan or a stage is."""

import logging
from pathlib import Path

import pytest

from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.swarm.overview.news import advise, told_plan
from dtfm_coordinator.swarm.overview.owner_words import phase_in_words, plan_in_words, reason_in_words, with_names
from dtfm_protocol.control.messages import Phase, Presence
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.process.logs import log
from tests.coordinator.peers import Peers, plan_of

FIGURES = "2 stages x 1+2 peers, zero-bubble: 0.432 s a step predicted; 2 x 1 by gpipe 0.455 s"
PLAN = Plan(stages=((0, 2), (2, 4)), routes=(("a", "b"), ("a", "c")), idle=("d",))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("waiting", "waiting for 3 more nodes (0 of 3 are ready)", "Waiting until 3 machines are ready: none so far."),
        (
            "waiting",
            "waiting for 1 more nodes (2 of 3 are ready; 1 measuring; 2 connected, but not seen in the DHT yet)",
            "Waiting until 3 machines are ready: 2 so far, 1 measuring how fast they are, 2 not found by the others "
            "yet.",
        ),
        (
            "waiting",
            "waiting for 1 more nodes (0 of 1 are ready; 1 not heard of for 4 s); after 20 s the run goes on with "
            "those that are here",
            "Waiting until 1 machine is ready: none so far, 1 silent: asleep, busy, or without a network. After 20 s "
            "the run goes on with those that are here.",
        ),
        (
            "waiting",
            "pausing for the owner: plan 3 ends with the step under way",
            "Pausing for the owner: the step under way is finished first.",
        ),
        (
            "waiting",
            "waiting: 1 of the 3 that decide on what follows plan 2 have answered, and the others may be training; "
            "if they are gone for good, start with --without-quorum",
            "Machines that may still be training do not answer; if they are gone for good, start with "
            "--without-quorum.",
        ),
        ("probing", "measuring links: round 1 of 3", "Measuring the connections between the machines (1 of 3)."),
        ("probing", "measuring what nodes can send in all: round 2 of 3", "Measuring what each machine can send "
         "(2 of 3)."),
        ("planning", "planning for 3 nodes", "Working out which machine computes what."),
        ("planning", "GGtm4e left", "Dividing the work anew: GGtm4e left."),
        (
            "planning",
            f"5Z7gN6 has become slow: {FIGURES}",
            "A better division of the work was found, and is taken up after this step: 5Z7gN6 has become slow.",
        ),
        (
            "planning",
            f"a -> b may have changed: {FIGURES}",
            "A better division of the work was found, and is taken up after this step, or at once where that is quicker"
            ": the connection a -> b may have become faster or slower.",
        ),
        (
            "planning",
            f"the owner changes training.learning_rate = 5: {FIGURES}",
            "The settings change after this step: the owner changes training.learning_rate = 5.",
        ),
        (
            "planning",
            f"q3bDsY wants to leave or to pause: {FIGURES}",
            "The work of who goes is given to others after this step: q3bDsY wants to leave or to pause.",
        ),
        (
            "planning",
            f"q3bDsY came: {FIGURES}",
            "The work is divided anew after this step, among those who are here now: q3bDsY joined.",
        ),
        ("planning", "the first plan", "Dividing the work among the machines."),
        ("training", f"plan 1 from step 0: {FIGURES}", "Training: 3 machines compute, the model cut into 2 parts; 1 "
         "more stands by."),
        ("training", "back: looking for the peers of plan 2", "This coordinator is back, and looks whether all "
         "machines still train."),
        ("done", "all 40 steps are done; the model is in run/checkpoints", "Done: all 40 steps are done; the model is "
         "in run/checkpoints. `dtfm-coordinator export` makes it one that other programs load."),
    ],
)  # fmt: skip
def test_what_a_coordinator_does_is_said_plainly(name: str, text: str, said: str) -> None:
    told = phase_in_words(Phase.model_validate({"name": name, "text": text}), PLAN)
    assert told == said
    assert not any(word in told for word in ("plan 1", "stages", "replica", "peer", "DHT", "zero-bubble"))


def test_how_fast_a_step_should_be_is_said_where_it_is_known() -> None:
    phase = Phase.model_validate({"name": "training", "text": "plan 1"})
    known = PLAN.model_copy(
        update={"cost": Cost(kind="makespan", total=0.432, data_parallel=0.0, pipeline=0.0), "idle": ()}
    )
    assert phase_in_words(phase, known).endswith("cut into 2 parts. A step should take about 0.4 s.")
    assert (
        phase_in_words(phase, plan_of("a").model_copy(update={"version": 2}))
        == "Training: 1 machine computes the whole model."
    )


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("a came; b has become slow", "a joined; b has become slow"),
        ("a -> b may have changed", "the connection a -> b may have become faster or slower"),
        (f"a came: {FIGURES}", "a joined"),
        ("a stalled (no room)", "a cannot go on (no room)"),
        (
            "links that nobody knew are better than was thought",
            "connections that were measured meanwhile are better than was thought",
        ),
    ],
)
def test_reasons_are_said_plainly(why: str, said: str) -> None:
    assert reason_in_words(why) == said


async def test_the_log_says_each_thing_once_and_keeps_the_planners_words_for_verbose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is compared while machines train is no line for an owner."""
    peers = Peers(tmp_path)
    with caplog.at_level("DEBUG", logger="dtfm"):
        for others in ("", "; 1 measuring", "; 1 connected, but not seen in the DHT yet"):
            await peers.announcer.say("waiting", f"waiting for 2 more nodes (0 of 2 are ready{others})")
        for turn in (1, 2, 3):
            await peers.announcer.say("probing", f"measuring links: round {turn} of 3")
        await peers.announcer.say("planning", "planning for 2 nodes")
        peers.state.plan = plan_of("a", "b")
        for name, text in (
            ("training", f"plan 1 from step 0: {FIGURES}"),
            ("probing", "measuring links: round 1 of 1"),
            ("planning", "planning for 2 nodes"),
            ("training", f"plan 1: {FIGURES}"),
            ("planning", "a leaves or pauses, and without it no node is left: keeping a checkpoint first"),
            ("training", f"plan 1: {FIGURES}"),
            ("planning", "b left"),
        ):
            await peers.announcer.say(name, text)
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.INFO] == [
        "Waiting until 2 machines are ready: none so far.",
        "Measuring the connections between the machines.",
        "Working out which machine computes what.",
        "Training: 2 machines compute, each of them the whole model.",
        "Keeping a checkpoint, as the run cannot go on as it is: a leaves or pauses, and without it no node is left.",
        "Dividing the work anew: b left.",
    ]
    assert f"training: plan 1: {FIGURES}" in [one.getMessage() for one in caplog.records]


def test_a_plan_of_an_earlier_life_is_told_plainly() -> None:
    event = PlanEvent(
        plan=2,
        why=f"b has become slow: {FIGURES}",
        called_at=1.0,
        in_force_at=2.0,
        step=12,
        repeated=1,
        source="replicas",
    )
    assert told_plan(event).text == (
        "The work was divided anew for the steps after 12: b has become slow. The run went back to the state after "
        "step 12, the newest that is left whole: 1 step is run again."
    )


def test_a_warning_of_the_log_brings_what_to_do() -> None:
    record = logging.LogRecord("dtfm", logging.WARNING, "", 0, "cannot write: no space left on device", (), None)
    assert advise(record)
    form = log.handlers[0].formatter if log.handlers else None
    assert "Make room" in record.advice  # type: ignore[attr-defined]
    assert form is None or "Make room" in form.format(record)


def test_members_are_called_by_their_names_once() -> None:
    names = {"q3bDsY": "Ann's PC"}
    assert with_names("q3bDsY joined; 5Z7gN6 left", names) == "Ann's PC (q3bDsY) joined; 5Z7gN6 left"
    assert with_names("Ann's PC (q3bDsY) joined.", names) == "Ann's PC (q3bDsY) joined."
    assert with_names("xq3bDsY joined", names) == "xq3bDsY joined"


def test_nobody_has_a_name_by_an_end_that_two_ids_have(tmp_path: Path) -> None:
    members = Peers(tmp_path).state.members
    for peer, name in (("1q3bDsY", "Ann"), ("2q3bDsY", "Eve"), ("35Z7gN6", "Ben")):
        members.seen(peer, Presence(session="one", online=True, name=name))
    assert members.names() == {"5Z7gN6": "Ben"}


def test_beside_the_map_of_a_plan_stand_no_words_of_a_planner() -> None:
    lacking = "; the job's [plan] needs 2 nodes and 1 are here: it goes on with those"
    cost = Cost(kind="makespan", total=0.538, data_parallel=0.0, pipeline=0.0)
    assert plan_in_words(PLAN.model_copy(update={"reason": f"{FIGURES}{lacking}", "cost": cost})) == (
        "A step should take about 0.5 s. The job's [plan] asks for 2 machines, and 1 could be used."
    )
    assert plan_in_words(PLAN.model_copy(update={"reason": FIGURES})) == ""
