"""Orders of compute follow durations that drift: at the same step on every peer, and nothing else changes."""

import json
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dtfm_node.engine.drifted_pace import SMOOTHED_STEPS
from dtfm_node.engine.host_copies import HostCopies
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.orders_in_force import OrdersInForce
from dtfm_node.engine.runtime import Runtime
from dtfm_protocol.plan.ballot import Commit, NewDurations, Vote, read_ballot
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.wire.frames import Kind
from dtfm_protocol.wire.stream import Bytes
from tests.node.engine_reference import alone, assert_same_training
from tests.node.engine_swarm import CPU, PLANS, Result, Swarm, home, job_of, one_thread, plan_of
from tests.node.test_engine_byzantine_peers import claiming, remember, tell
from tests.protocol.test_schedule import paced

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow

LAST = SMOOTHED_STEPS + 3
CHANGED = SMOOTHED_STEPS + 1
"""First step of the new orders, where durations have drifted since the first."""
BATCH = {"global_batch": 24, "steps": LAST}


def following(name: str, schedule: str = "1f1b", delay: int = 500, **fields: Any) -> Plan:
    """A plan of twelve micro-batches whose pace is that of equally fast peers, on links with a delay."""
    plain = plan_of(name, routes=3 * PLANS[name][1], schedule=schedule, **fields)
    split, peers, pairs = schedule == "zero-bubble", len(plain.peers), len(plain.pairs)
    columns = {"forward": [1000] * peers, "backward": [1000 if split else 2000] * peers}
    columns |= {"weight": [1000] * peers} if split else {}
    plan = paced(plain, **columns, ahead_delay=[delay] * pairs, back_delay=[delay] * pairs)
    return plan.model_copy(update={"follows_durations": True})


@dataclass(frozen=True)
class MadeUpTimes(Runtime):
    """A machine that says that its actions took what the pace says, times a factor, and notes what they were."""

    seconds: dict[str, float] = field(default_factory=dict)
    done: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Names of the actions of each step."""

    async def run(
        self,
        lane: Any,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        least: float = 0.0,
        took: Callable[[float], None] | None = None,
        **labels: int,
    ) -> tuple[Any, Any]:
        found = await super().run(lane, name, function, *arguments, least=least, **labels)
        kind = name.partition(" ")[0]
        if kind in self.seconds:
            self.done[labels["step"]].append(name)
            if took is not None:
                took(self.seconds[kind])
        return found


def make_up_times(swarm: Swarm, factors: dict[str, float]) -> dict[str, defaultdict[int, list[str]]]:
    """Have peers say what their actions took: what the plan says, times a factor; return what each computes."""
    pacing = swarm.plan.pacing
    assert pacing is not None
    done = {}
    for place, (me, peer) in enumerate(swarm.peers.items()):
        times = zip(("forward", "backward", "weight"), pacing.durations_of(place), strict=False)
        seconds = {kind: factors.get(me, 1.0) * each / 1e6 for kind, each in times}
        peer.machine = machine = MadeUpTimes(CPU, peer.compute, peer.compute, HostCopies(CPU), seconds=seconds)
        done[me] = machine.done
    return done


def names_of(orders: OrdersInForce, peer: str) -> list[str]:
    return [f"{action.kind} {action.micro_batch}" for action in orders.orders[peer]]


def slower(plan: Plan, factors: dict[str, float]) -> NewDurations:
    """What a commit says of peers that take so many times as long."""
    assert plan.pacing is not None
    places = [(plan.peers.index(peer), factor) for peer, factor in factors.items()]
    return tuple(
        (place, tuple(round(factor * each) for each in plan.pacing.durations_of(place))) for place, factor in places
    )


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("name", "schedule", "delay", "drift"),
    [
        ("uneven shares", "1f1b", 500, {"y": 3.0}),
        ("crossed routes", "1f1b", 500, {"n": 3.0}),
        ("crossed routes", "zero-bubble", 0, {"n": 3.0}),
        ("1x4", "zero-bubble", 3000, {"a": 0.3}),
    ],
)
async def test_orders_change_at_one_step_everywhere_and_the_training_does_not(
    home: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    schedule: str,
    delay: int,
    drift: dict[str, float],
    tied: bool,
) -> None:
    """As one process trains, to 1e-5; `Swarm.run` compares the bits of replicas."""
    plan = following(name, schedule, delay)
    swarm = Swarm(home, job_of(home, tied=tied, **BATCH), plan)
    done = make_up_times(swarm, drift)
    with caplog.at_level(logging.INFO):
        found = await swarm.run(LAST)
    said = f"the order of work follows new durations of one machine from step {CHANGED} on"
    assert [line for line in caplog.messages if "order of work" in line] == [said] * len(plan.peers)
    assert_same_training(found, alone(home, tied, **BATCH), 1e-5)
    own = OrdersInForce.of(plan)
    new = own.after(slower(plan, drift))
    assert new.orders != own.orders
    for me in plan.peers:
        for step in range(1, LAST + 1):
            assert done[me][step] == names_of(new if step >= CHANGED else own, me), (me, step)


async def test_what_is_as_the_plan_says_changes_nothing(home: Path) -> None:
    plan = following("uneven shares")
    swarm = Swarm(home, job_of(home, **BATCH), plan)
    done = make_up_times(swarm, {"y": 1.15})
    told: list[Bytes] = []
    remember(swarm, "a", Kind.COMMIT, told)
    await swarm.run(LAST)
    assert not any(commit.durations for commit in commits(told))
    assert all(done["a"][step] == names_of(OrdersInForce.of(plan), "a") for step in range(1, LAST + 1))


def commits(frames: list[Bytes]) -> list[Commit]:
    return [read_ballot(bytes(frame)[64:], Commit) for frame in frames]


async def test_the_next_plan_begins_with_its_own_pace_on_all_peers(home: Path) -> None:
    """Those that have followed new durations, and one that is there for the first time."""
    former = Swarm(home, job_of(home, **BATCH), following("uneven shares"))
    make_up_times(former, {"y": 3.0})
    start = await former.run(CHANGED)
    held = tuple(Source(peer=me, layers=(former.plan.stages[former.plan.stage_of(me) or 0],)) for me in former.peers)
    resume = Resume(mark=Mark(step=CHANGED, plan=1), sources=held)
    plan = following("crossed routes", version=2, resume=resume)
    swarm = Swarm(home, job_of(home, **BATCH), plan, former.network, former)
    done = make_up_times(swarm, {})
    rest = await swarm.run(LAST)
    assert_same_training(Result(start.rows + rest.rows, rest.state), alone(home, False, **BATCH), 1e-5)
    for me in plan.peers:
        assert done[me][CHANGED + 1] == names_of(OrdersInForce.of(plan), me)


@pytest.mark.parametrize("follows", [True, False])
async def test_peers_vote_what_their_compute_took_where_the_plan_follows_it(home: Path, follows: bool) -> None:
    plan = following("1x2", "zero-bubble").model_copy(update={"follows_durations": follows})
    swarm = Swarm(home, job_of(home, **BATCH), plan)
    cast: list[Bytes] = []
    remember(swarm, "x", Kind.VOTE, cast)
    await swarm.run(2)
    votes = [json.loads(bytes(frame)[64:]) for frame in cast]
    assert len(votes) == 3
    assert "durations" not in votes[0], "nothing is computed before the start"
    for vote in votes[1:]:
        durations = Vote.model_validate(vote).durations
        assert len(durations) == (3 if follows else 0)
        assert all(1 < each < 10**7 for each in durations)
        assert ("durations" in vote) == follows


@pytest.mark.parametrize(
    ("durations", "why"),
    [
        ([1000], "with 1 durations of its actions, not 2"),
        ([1000, 2000, 1000], "with 3 durations of its actions, not 2"),
        ([1000, 0], "greater than or equal to 1"),
        ([1000, -5], "greater than or equal to 1"),
        ([1000, 10**12], "less than or equal to 3600000000"),
        ([1000] * 4, "at most 3 items"),
        ([1000.5, 2000], "valid integer"),
    ],
)
async def test_a_vote_with_durations_that_cannot_be_is_its_voters_fault(
    home: Path, durations: list[float], why: str
) -> None:
    swarm = Swarm(home, job_of(home, **BATCH), following("1x2"))
    tell(swarm, "x", Kind.VOTE, claiming("vote", "x", durations=durations), 0)
    assert_lost(await swarm.ends(), "a", "x", why)


async def test_a_vote_with_durations_that_nobody_asked_for_is_its_voters_fault(home: Path) -> None:
    swarm = Swarm(home, job_of(home), plan_of("1x2"))
    tell(swarm, "x", Kind.VOTE, claiming("vote", "x", durations=[1000, 2000]), 0)
    assert_lost(await swarm.ends(), "a", "x", "with 2 durations of its actions, not 0")


@pytest.mark.parametrize(
    ("durations", "why"),
    [
        ([[7, [1000, 2000]]], "2 durations of peer 7, of 3 peers with 2 each"),
        ([[0, [1000]]], "1 durations of peer 0, of 3 peers with 2 each"),
        ([[0, [1000, 0]]], "greater than or equal to 1"),
        ([[0, [1000, 2000]]] * 33, "at most 32 items"),
    ],
)
async def test_a_commit_with_durations_that_cannot_be_is_the_arbiters_fault(
    home: Path, durations: list[Any], why: str
) -> None:
    """All who hear it refuse it alike: nobody computes in other orders than the rest."""
    swarm = Swarm(home, job_of(home, **BATCH), following("uneven shares"))
    tell(swarm, "a", Kind.COMMIT, claiming("commit", "a", durations=durations), 0)
    ends = await swarm.ends()
    for me in ("x", "y"):
        assert_lost(ends, me, "a", why)


async def test_a_commit_with_durations_that_the_plan_does_not_follow_is_the_arbiters_fault(home: Path) -> None:
    swarm = Swarm(home, job_of(home), plan_of("1x2"))
    tell(swarm, "a", Kind.COMMIT, claiming("commit", "a", durations=[[0, [1000, 2000]]]), 0)
    assert_lost(await swarm.ends(), "x", "a", "a commit with durations that are not due")


def assert_lost(ends: dict[str, list[BaseException]], me: str, whom: str, why: str) -> None:
    (lost,) = ends[me]
    assert isinstance(lost, PeerLost)
    assert lost.peer == whom
    assert why in str(lost)
