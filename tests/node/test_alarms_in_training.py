"""A peer that trains wrongly, with frames that are well-formed: the engine names it where its lie is large enough.

The lies that go unseen are here, too: nothing promises that they are noticed.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dtfm_node.engine.allreduce import AllReduce
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.part_alarm import PartAlarm, Strain
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.trainer import Trainer
from dtfm_protocol.plan.ballot import Ballot
from dtfm_protocol.plan.reduction_trees import ReductionTrees
from dtfm_protocol.wire.codecs import decode, encode, to_bytes
from dtfm_protocol.wire.frames import Kind
from dtfm_protocol.wire.stream import Bytes
from tests.node.engine_swarm import STEPS, Swarm, home, identical, job_of, one_thread, plan_of
from tests.node.test_engine_byzantine_peers import signed, tell

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow

STEP = 5
"""When the lie is told: some steps have shown what is usual."""


class AccusesNobody(PartAlarm):
    """An alarm that nothing sets off."""

    def __init__(self) -> None:
        """Know of no parts."""

    def judge(self, *_: object) -> dict[str, Strain]:
        return {}


def lies(liar: str, lie: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `liar` do `lie` to its gradients from step `STEP` on, and accuse nobody."""
    run = AllReduce.run

    async def lying(self: AllReduce, bucket: Bucket, step: int, gradient: torch.Tensor) -> float:
        if self._me == liar and step >= STEP:
            lie(gradient)
            self._alarm = AccusesNobody()
        return await run(self, bucket, step, gradient)

    monkeypatch.setattr(AllReduce, "run", lying)


def noise(gradient: torch.Tensor) -> None:
    norm = gradient.norm()
    gradient.normal_()
    gradient.mul_(norm / gradient.norm())


async def refusals(swarm: Swarm, liar: str) -> dict[str, PeerLost]:
    """Whom the honest peers lost that refused somebody, by who did; nobody has applied the step."""
    ends = await swarm.ends()
    found = {}
    for me, peer in swarm.peers.items():
        if me == liar:
            continue
        assert {type(error) for error in ends[me]} == {PeerLost}
        assert [row.step for row in peer.rows] == list(range(1, STEP))
        assert identical(peer.now(), peer.states[STEP - 1])
        assert peer._exchange is not None
        for lost in peer._exchange.lost.values():
            if lost.refused:
                assert peer._exchange.refused[FrameFault.CONTENT] >= 1  # several parts may come at once
                found[me] = lost
    return found


def spoilt(payload: Bytes) -> bytes:
    count = len(payload) // 4
    values = decode(torch.frombuffer(bytearray(payload), dtype=torch.uint8), "fp32", (count,))
    return bytes(to_bytes(encode(1e6 * values, "fp32")))


def times(factor: float) -> Callable[[torch.Tensor], object]:
    return lambda gradient: gradient.mul_(factor)


@pytest.mark.parametrize("name", ["2x1", "4x1", "uneven shares"])
@pytest.mark.parametrize(
    ("wire", "lie", "why"),
    [
        ("fp32", times(3000), "the most that is usual"),
        ("int8", times(3000), "the most that is usual"),
        ("int8", times(-10_000), "the most that is usual"),
        ("fp32", times(0), "the least that is usual"),
    ],
    ids=["x3000", "x3000 int8", "x-10000 int8", "zeros"],
)
async def test_gradients_beyond_what_is_usual_are_refused_and_their_sender_is_named(
    home: Path, name: str, wire: str, lie: Callable[[torch.Tensor], object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = "b" if name != "uneven shares" else "y"
    swarm = Swarm(home, job_of(home), plan_of(name, wire=wire))
    lies(liar, lie, monkeypatch)
    found = await refusals(swarm, liar)
    assert found
    for lost in found.values():
        assert lost.peer == liar
        assert "sent a part whose norm" in str(lost)
        assert why in str(lost)


CHAIN = ((0, 0, 1, 2), (1, 1, 1, 2), (1, 2, 2, 2), (1, 2, 3, 3))
"""Trees of four replicas along which each part goes from neighbour to neighbour."""


@pytest.mark.parametrize("liar", ["a", "b", "c", "d"])
async def test_along_trees_who_lies_is_named_and_nobody_who_has_handed_it_on(
    home: Path, liar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gets a sum judges it before it adds its own: no lie goes on under another one's name."""
    plan = plan_of("4x1").model_copy(update={"trees": ReductionTrees(stages=(CHAIN,))})
    swarm = Swarm(home, job_of(home), plan)
    lies(liar, times(1e6), monkeypatch)
    found = await refusals(swarm, liar)
    assert found
    assert {lost.peer for lost in found.values()} == {liar}


async def test_who_spoils_a_sum_on_the_way_is_named(home: Path) -> None:
    plan = plan_of("4x1").model_copy(update={"trees": ReductionTrees(stages=(CHAIN,))})
    swarm = Swarm(home, job_of(home), plan)
    tell(swarm, "c", Kind.PART, spoilt, step=STEP)
    found = await refusals(swarm, "c")
    assert found
    assert {lost.peer for lost in found.values()} == {"c"}


async def test_an_owner_that_spoils_the_sum_is_named_by_those_whom_it_tells(home: Path) -> None:
    """Nobody else sees what an owner adds of its own."""
    swarm = Swarm(home, job_of(home), plan_of("4x1"))
    tell(swarm, "c", Kind.REDUCED, spoilt, step=STEP)
    found = await refusals(swarm, "c")
    assert found
    assert {lost.peer for lost in found.values()} == {"c"}


@pytest.mark.parametrize(
    "lie",
    [times(5), times(-1), noise],
    ids=["x5", "opposite", "noise of the same norm"],
)
async def test_lies_that_could_be_odd_text_are_not_seen_within_few_steps(
    home: Path, lie: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opposite signs are seen in the end, where gradients agree; noise never is."""
    swarm = Swarm(home, job_of(home), plan_of("4x1"))
    lies("b", lie, monkeypatch)
    assert len((await swarm.run()).rows) == STEPS


@pytest.mark.parametrize(
    ("name", "tied", "wire"),
    [
        ("2x1", False, "int8"),
        ("4x1", True, "bf16"),
        ("2x2", True, "fp32"),
        ("uneven shares", True, "int8"),
        ("1x4", False, "fp32"),
    ],
)
async def test_honest_peers_raise_no_alarm(home: Path, name: str, tied: bool, wire: str) -> None:
    swarm = Swarm(home, job_of(home, tied=tied, steps=30, warmup_steps=10), plan_of(name, wire=wire))
    assert len((await swarm.run(30)).rows) == 30


@pytest.mark.parametrize("factor", [1e16, 1e-12])
async def test_a_lone_stage_votes_no_norm_unlike_those_before(home: Path, factor: float) -> None:
    swarm = Swarm(home, job_of(home), plan_of("1x2"))

    def any_norm(payload: Bytes) -> bytes:
        vote = json.loads(bytes(payload)[64:])
        vote["sum_squares"] = {group: factor * value for group, value in vote["sum_squares"].items()}
        return signed("vote", "x", json.dumps(vote).encode(), STEP)

    tell(swarm, "x", Kind.VOTE, any_norm, Ballot.STEP, step=STEP)
    (lost,) = (await refusals(swarm, "x")).values()
    assert lost.peer == "x"
    assert "sent a vote whose norm" in str(lost)


async def test_a_trainer_passes_the_lenience_of_its_plan_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a run ends at no step whose text is odd."""
    swarm = Swarm(home, job_of(home), plan_of("2x1"))
    make = Trainer.__init__
    monkeypatch.setattr(Trainer, "__init__", lambda self, *arguments: make(self, *arguments, lenience=1e30))
    run = AllReduce.run

    async def odd(self: AllReduce, bucket: Bucket, step: int, gradient: torch.Tensor) -> float:
        if self._me == "b" and step == 1:
            gradient.mul_(1e5)
        return await run(self, bucket, step, gradient)

    monkeypatch.setattr(AllReduce, "run", odd)
    assert len((await swarm.run(2)).rows) == 2
