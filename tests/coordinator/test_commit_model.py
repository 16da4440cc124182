"""Commit rule and plan succession, proved at small size: every interleaving of a model around the real decisions.

The rule: in a step every peer of the plan reduces gradients, holds them, and votes; when the arbiter has all votes, the
step is final, and whoever hears so applies it. Nobody begins a step before the one before it is applied. To end a plan,
a coordinator calls for a greater version; a peer stops, promises on its disk, and says what it holds. With a quorum of
promises the coordinator makes the plan of that version, from the newest state that those who answer have; a quorum must
take it before it comes into force, and all its peers must have loaded before its first step.

In every state that can be reached, with peers and coordinators that die at any moment, and late or lost messages:

1. all peers that begin a plan begin it with the same state, the one that it names;
2. a mark names one content, in memories and checkpoints, and the content has each step once and in order;
3. a new plan resumes from no older state along the chain of plans than the newest one that those who answered have as
   a whole, applied or held with the word that it is final: where every stage answers, nothing that any of them applied
   is run again;
4. of each plan that was in force somebody has stopped for good before a newer one is made: after that at most one step
   of it becomes final, the one that was under way; of one version one plan at most is in force, or begun;
5. the job can still be done, as long as another plan may be called for;
6. a new plan goes on from a state that leads on, one that the plans before it have led to, and from nothing that its
   sources were never given; peers that lie of what they hold, alone or together, change nothing of that;
7. what a peer was given ahead of its plan counts only where it is what a source of that plan has;
8. all peers that compute a step of a plan do so by the same durations, the plan's own or those of one commit: orders of
   unlike durations may wait for each other in a circle.

What the third one does not say, as `resume_from` does not: a step that only somebody who does not answer has applied is
run again. And the fourth: the step that was under way when a plan was ended may still become final among those whom the
call does not reach. Its state has another mark than the same step of the newer plan, leads nowhere, and is run again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_coordinator.leader.controller import hold
from dtfm_coordinator.plan_change.ended_processes import EndedProcesses
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import (
    Role,
)
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_node.state.held_states import HeldStates
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.control.messages import Epoch, Report
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SignedCommit
from tests.coordinator.commit_mistakes import (
    CountsWhatItForgot,
    ForgetsItsPromise,
    GrantsAll,
    Hasty,
    KeepsItsPace,
    LearnsNothing,
    LiveAlone,
    NothingPrepared,
    SaysItFirst,
    Unaware,
    UsesVersionsAgain,
    WhosePlanDoesNotMatter,
    WithoutCommits,
    WithoutEnds,
    WithoutQuorum,
    WithoutVotes,
    believes_the_arbiter,
    believes_what_is_ahead,
    is_signed_by_anybody,
    takes_no_proof,
)
from tests.coordinator.commit_model import search
from tests.coordinator.commit_setting import Rule, Setting
from tests.coordinator.commit_state import MadePlan

TWO = (("A",), ("B",))
"""Two stages, a peer each; A is the arbiter."""
SWAPPED = (("B",), ("A",))
PAIR = (("A", "B"),)
"""One stage, two replicas."""
UNEQUAL = (("A", "D"), ("B",))
"""Two stages, two replicas and one."""
A, B, D = (("A",),), (("B",),), (("D",),)
PAIR_WITH_NEW = (("A", "D"),)
"""One stage, with a replica that was none before."""

SPARES = tuple(f"spare {number}" for number in range(10))

PUT_BACK = Setting(("A", "B"), PAIR, (A,), versions=2, later=1, steps=1, outages=1)
"""A coordinator's disk that is put back to what it was when the first plan began."""
PUT_BACK_WITH_STAGES = Setting(("A", "B"), TWO, (SWAPPED,), versions=2, later=1, steps=2, outages=1)
PUT_BACK_AND_PASSED = Setting(("A", "D"), A, (D,), versions=2, later=1, steps=1, outages=1)

AHEAD = Setting(("A", "D"), A, (PAIR_WITH_NEW,), versions=3, steps=1, crashes=1, ahead=True, all_answer=True)
"""A newcomer is given the state while the other one trains, and takes a part of the work."""
AHEAD_OF_ALL = Setting(("A", "D"), A, (PAIR_WITH_NEW, D), steps=2, crashes=1, ahead=True, all_answer=True)

HOLDS = {
    "stages that change hands, twice": Setting(("A", "B"), TWO, (SWAPPED,), versions=3, steps=1),
    "two steps and two crashes": Setting(("A", "B"), TWO, (TWO,), crashes=2),
    "replicas and checkpoints": Setting(("A", "B"), PAIR, (PAIR,), crashes=1, checkpoints=True),
    "three peers": Setting(("A", "B", "D"), UNEQUAL, (TWO,), steps=1),
    "a spare that steps in": Setting(
        ("A", "B", "D"), TWO, ((("A",), ("D",)),), steps=1, crashes=1, all_answer=True, stalls=True
    ),
    "two plans and a crash": Setting(("A", "B"), A, (PAIR,), versions=3, steps=1, crashes=1, all_answer=True),
    "a coordinator that dies": Setting(("A", "B"), A, (B,), versions=3, steps=1, outages=1),
    "two coordinators and a crash": Setting(("A", "B"), PAIR, (B,), steps=1, crashes=1, coordinators=("C", "X")),
    "two coordinators, two plans": Setting(
        ("A", "B"), PAIR, (B,), versions=3, steps=1, coordinators=("C", "X"), all_answer=True
    ),
    "a peer that claims layers, or a newer state": Setting(("A", "B"), TWO, (TWO,), crashes=1, liars=("B",)),
    "a replica that claims a newer state": Setting(("A", "B"), PAIR, (PAIR,), liars=("B",)),
    "an arbiter that tells some, hides, and claims": Setting(("A", "B"), TWO, (TWO,), crashes=1, liars=("A",)),
    "an arbiter that holds the whole model, and claims": Setting(("A", "B"), PAIR, (PAIR, A), crashes=1, liars=("A",)),
    "an arbiter that is left alone, and tells the truth": Setting(("A", "B"), PAIR, (A, B), crashes=1, all_answer=True),
    "peers of an old plan that train on": Setting(("A", "D"), A, (D,), versions=3, steps=1, liars=("A",)),
    "ten silent spares": Setting(("A", "B"), PAIR, (PAIR,), steps=1, crashes=1, spares=SPARES),
    "a peer that pauses at once, and goes on": Setting(("A", "B"), PAIR, (PAIR, B), steps=1, crashes=1, pauses=True),
    "a coordinator's disk that is put back": PUT_BACK,
    "a coordinator's disk that is put back, and stages": PUT_BACK_WITH_STAGES,
    "a coordinator's disk that is put back, and work that has passed to another": PUT_BACK_AND_PASSED,
    "two coordinators that hear promises of peers who then vanish": Setting(
        ("A", "B"), PAIR, (B,), versions=3, steps=0, coordinators=("C", "X")
    ),
    "a newcomer that is given ahead what it is to train, or a lie": AHEAD,
    "a newcomer that is given ahead all of two steps, or a lie": AHEAD_OF_ALL,
    "a disk from before a promise": Setting(("A", "B"), PAIR, (PAIR,), steps=1, crashes=1, restores=True),
}
"""By what is peculiar to it. Together some 1,000,000 states."""
QUICK = frozenset(
    {
        "a replica that claims a newer state",
        "an arbiter that tells some, hides, and claims",
        "ten silent spares",
    }
)
"""Settings of few states, which `make check` searches too."""


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name, setting in HOLDS.items()
    ],
)
def test_the_rule_holds_in_every_state(setting: Setting) -> None:
    found = search(setting)
    assert found.violation is None, "\n".join((found.violation or "", *found.trace))
    assert found.stuck is None, "\n".join(("the job cannot be done any more:", *(found.stuck or ())))
    assert found.states > 3000, "so few states prove nothing"


NEEDED: dict[str, tuple[Rule, Setting, str]] = {
    "all votes": (Rule(arbiter=WithoutVotes), Setting(("A", "B"), TWO, (TWO,)), "a step is lost"),
    "lasting promises": (
        Rule(follower=ForgetsItsPromise),
        Setting(("A", "B"), A, (A, B), steps=1, crashes=1, coordinators=("C", "X")),
        "may go on|in force|promised not to",
    ),
    "a quorum": (
        Rule(coordinator=WithoutQuorum),
        Setting(("A", "B"), PAIR, (PAIR,), steps=1),
        "may go on",
    ),
    "prepared gradients that outlive a call": (
        Rule(memory=NothingPrepared),
        Setting(("A", "B"), TWO, (TWO,), steps=1),
        "a step is lost",
    ),
    "the plan's own pace at its begin": (
        Rule(memory=KeepsItsPace),
        Setting(("A", "B"), TWO, (TWO,), steps=1),
        "unlike durations",
    ),
    "a hash of what was given ahead": (
        Rule(serves=believes_what_is_ahead),
        AHEAD,
        "is two states|has the history",
    ),
    "no plan older than the promise": (
        Rule(follower=Hasty),
        Setting(("A",), A, (A,), versions=3, steps=1),
        "promised not to",
    ),
    "that only this plan's processes have ended": (
        Rule(coordinator=WhosePlanDoesNotMatter),
        Setting(("A", "D"), A, (A, D), versions=3, steps=1, crashes=1),
        "may go on",
    ),
    "the plan's file before its force": (
        Rule(coordinator=SaysItFirst),
        Setting(("A", "B"), PAIR, (A, B), versions=3, steps=1, outages=1),
        "may go on",
    ),
    "what is loaded or was held before": (
        Rule(memory=LiveAlone),
        Setting(("A", "B"), TWO, (SWAPPED,), versions=3, steps=1, all_answer=True),
        "a state is lost",
    ),
    "what others have taken": (
        Rule(coordinator=LearnsNothing),
        Setting(("A", "D"), (("A", "D"),), (D,), versions=3, steps=1, coordinators=("C", "X")),
        "may go on",
    ),
    "layers that a plan gave": (Rule(chain=GrantsAll), Setting(("A", "B"), TWO, (TWO,), liars=("B",)), "made up"),
    "layers that a plan gave, to an arbiter too": (
        Rule(chain=GrantsAll),
        Setting(("A", "B"), TWO, (TWO,), liars=("A",)),
        "made up",
    ),
    "a commit": (Rule(chain=WithoutCommits), Setting(("A", "B"), PAIR, (PAIR,), liars=("B",)), "made up|led nowhere"),
    "the arbiter's commit": (
        Rule(is_signed=is_signed_by_anybody),
        Setting(("A", "B"), PAIR, (PAIR,), liars=("B",)),
        "made up",
    ),
    "somebody else's word than the arbiter's": (
        Rule(voted=believes_the_arbiter),
        Setting(("A", "B"), PAIR, (PAIR,), liars=("A",)),
        "made up",
    ),
    "the arbiter's proof that all have voted": (
        Rule(voted=takes_no_proof),
        Setting(("A", "B"), PAIR, (A, B), crashes=1, all_answer=True),
        "a step is lost|a state is lost",
    ),
    "the end of a plan": (
        Rule(chain=WithoutEnds),
        Setting(("A", "D"), A, (D,), versions=3, steps=1, liars=("A",)),
        "led nowhere",
    ),
    "the vote of somebody who remembers": (Rule(coordinator=CountsWhatItForgot), PUT_BACK, "may go on"),
    "new versions after a disk was put back": (
        Rule(coordinator=UsesVersionsAgain),
        PUT_BACK,
        "never was in force|two plans of",
    ),
    "what peers have taken, after a disk was put back": (
        Rule(coordinator=LearnsNothing),
        PUT_BACK_AND_PASSED,
        "may go on",
    ),
    "the states of such a plan": (Rule(coordinator=LearnsNothing), PUT_BACK_WITH_STAGES, "a state is lost"),
    "to know what a restart has cost": (
        Rule(follower=Unaware),
        Setting(("A", "B"), PAIR, (A, B), steps=1, crashes=1, restores=True),
        "may go on|in force|promised not to",
    ),
}


@pytest.mark.parametrize(("rule", "setting", "why"), NEEDED.values(), ids=NEEDED)
def test_without_this_the_rule_breaks(rule: Rule, setting: Setting, why: str) -> None:
    found = search(setting, rule)
    assert found.violation is not None, f"nothing breaks in {found.states} states"
    assert any(part in found.violation for part in why.split("|")), "\n".join((found.violation, *found.trace))


class SparesElect(MadePlan):
    """Spares have a say in what follows a plan."""

    @property
    def electors(self) -> tuple[str, ...]:
        return (*super().electors, *self.idle)


def test_if_spares_elected_silent_ones_would_hold_up_every_plan() -> None:
    found = search(HOLDS["ten silent spares"], Rule(plan=SparesElect))
    assert found.violation is None
    assert found.stuck is not None


# -- what the model asks for beyond the pure functions, asked of the code ---------------------------------------------


def plan(version: int, *peers: str) -> Plan:
    return Plan(version=version, author="C", stages=((0, 2),), routes=tuple((peer,) for peer in peers))


async def test_a_coordinator_that_dies_when_a_plan_comes_into_force_knows_that_plan_when_it_returns(
    tmp_path: Path,
) -> None:
    state, rows = SwarmState(tmp_path, 2), MetricsFile(tmp_path / "metrics.jsonl")
    known: list[bool] = []

    async def publish(_: object, body: object) -> None:
        if isinstance(body, Epoch) and body.in_force:
            known.append((tmp_path / "plan.json").exists() and rows.last == 2 and state.event is not None)

    async def say(_: str) -> None:
        """Nobody listens."""

    for step in (1, 2, 3):
        rows.append(
            StepMetrics(
                step=step, loss=1.0, tokens=1, seconds=1.0, plan_version=0, learning_rate=0.1, grad_norm=1.0,
                predicted_seconds=None,
            )
        )  # fmt: skip
    event = PlanEvent(plan=1, why="test", called_at=0.0, in_force_at=0.0, step=2, repeated=1, source="replicas")
    coordinator = PlanChangeDriver(
        tmp_path, Role("C", alone=True), state.members, state, publish, say,
        is_genuine=lambda _: True, liveness=EndedProcesses(state.members),
    )  # fmt: skip
    working = asyncio.create_task(coordinator.run())
    assert await coordinator.call() == 1
    assert await coordinator.agree() == {}
    taken = PeerState(promise=Promise(version=1, to="C", accepted=1))
    state.members.reported("A", Report(session="one", state="idle", standing=taken))
    assert await coordinator.establish(plan(1, "A"), partial(hold, tmp_path, rows, state, event))
    working.cancel()
    assert known == [True]
    assert [row.step for row in rows.rows()] == [1, 2]
    assert state.plan == plan(1, "A")


@dataclass(eq=False)
class Stage:
    """A stage's state, as far as a standing tells of it."""

    mark: Mark
    layers: LayerRange
    prepared: Mark | None = None
    commit: SignedCommit | None = None


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def test_a_state_that_is_loaded_counts_before_its_plan_has_begun() -> None:
    """The others may have begun, and have dropped what they held of these layers before."""
    snapshots: Any = SimpleNamespace(holdings=list, votes_on=lambda *_: (), folder=Path())
    holdings = Inventory(snapshots, inline)
    live: Any = Stage(Mark(step=1, plan=1), (1, 2))
    coming: Any = Stage(Mark(step=1, plan=1), (0, 1))
    holdings.held = HeldStates(live, coming)
    found = [Holding(mark=live.mark, layers=layers, live=True) for layers in ((1, 2), (0, 1))]
    assert holdings.standing(Promise()).holdings == tuple(found)
