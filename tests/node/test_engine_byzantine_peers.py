"""A peer that sends what cannot be used costs the step and nothing else, and is named by whoever it sent that to."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.stage_state import Diverged, StageState
from dtfm_protocol.plan.ballot import VOTE_LIMIT, Ballot
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes
from tests.node.test_engine_equivalence import Swarm, home, identical, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures

STEP = 2
"""When the lie is told."""

Lie = Callable[[Bytes], Bytes]


def not_finite(payload: Bytes) -> Bytes:
    """The same bytes with NaNs in front: as a value in fp32 and bf16, as a scale in fp16 and int8."""
    return np.float32("nan").tobytes() + bytes(payload)[4:]


def saying(text: str) -> Lie:
    return lambda _: text.encode()


def tell(swarm: Swarm, liar: str, kind: Kind, lie: Lie, index: int | None = None, step: int = STEP) -> None:
    """Have `liar` send `lie` of what it should in frames of `kind`."""

    class Lying(Exchange):
        async def send(self, peer: str, key: Key, payload: Bytes) -> None:
            if key.kind is kind and key.step == step and (index is None or key.index == index):
                payload = lie(payload)
            await super().send(peer, key, payload)

    swarm.peers[liar].exchanging = Lying.running


async def ends(swarm: Swarm, liar: str) -> dict[str, PeerLost]:
    """How the other peers end: by a loss, before they apply the step."""
    found = {}
    for me, errors in (await swarm.ends()).items():
        if me != liar:
            assert {type(error) for error in errors} == {PeerLost}, (me, errors)
            assert isinstance(errors[0], PeerLost)
            found[me] = errors[0]
            peer = swarm.peers[me]
            assert [row.step for row in peer.rows] == list(range(1, STEP))
            assert identical(peer.now(), peer.states[STEP - 1])
    return found


def refused(swarm: Swarm) -> dict[str, Counter[FrameFault]]:
    """What was refused, by who refused it."""
    found = {me: peer._exchange.refused for me, peer in swarm.peers.items() if peer._exchange is not None}
    return {me: counts for me, counts in found.items() if counts}


PLACES = [
    ("1x2", "a", Kind.ACTIVATION, "x"),
    ("1x4", "m", Kind.ACTIVATION, "n"),
    ("1x2", "x", Kind.GRADIENT, "a"),
    ("1x4", "n", Kind.GRADIENT, "m"),
    ("2x1", "b", Kind.PART, "a"),
    ("2x1", "a", Kind.PART, "b"),
    ("2x1", "b", Kind.REDUCED, "a"),
    ("2x2 zero-bubble", "y", Kind.GRADIENT, "b"),
]


@pytest.mark.parametrize(
    ("name", "liar", "kind", "victim", "wire"),
    [(*place, "fp32") for place in PLACES]
    + [(*PLACES[place], wire) for place in (0, 4) for wire in ("bf16", "fp16", "int8")],
)
async def test_a_tensor_that_is_not_finite_is_its_senders_fault(
    home: Path, name: str, liar: str, kind: Kind, victim: str, wire: str
) -> None:
    swarm = Swarm(home, job_of(home), plan_of(name, wire=wire))
    tell(swarm, liar, kind, not_finite)
    lost = (await ends(swarm, liar))[victim]
    assert lost.peer == liar
    assert "with values that are not finite" in str(lost)
    assert refused(swarm) == {victim: {FrameFault.CONTENT: 1}}


@pytest.mark.parametrize("kind", [Kind.PART, Kind.REDUCED])
async def test_each_who_is_sent_a_lie_refuses_it_unless_another_has_left_before(home: Path, kind: Kind) -> None:
    swarm = Swarm(home, job_of(home), plan_of("4x1"))
    tell(swarm, "c", kind, not_finite)
    lost = await ends(swarm, "c")
    found = refused(swarm)
    assert found
    assert all(counts == {FrameFault.CONTENT: 1} for counts in found.values())
    assert all(lost[me].peer == "c" for me in found)
    assert all(lost[me].peer in {"c", *found} for me in lost)


@pytest.mark.parametrize(
    "lie",
    [
        "",
        "[]",
        "{",
        '{"losses": {"0": NaN}}',
        '{"losses": {"0": "much"}}',
        '{"sum_squares": {"0": -1e9}}',
        '{"losses": {"0": 1.0, "1": 1.0, "2": 1.0, "3": 1.0, "4": 1.0}}',
        '{"bytes_sent": -1}',
        "x" * VOTE_LIMIT,
    ],
    ids=range(9),
)
async def test_a_vote_that_cannot_be_counted_is_its_voters_fault(home: Path, lie: str) -> None:
    swarm = Swarm(home, job_of(home), plan_of("1x2"))
    tell(swarm, "x", Kind.VOTE, saying(lie), Ballot.STEP)
    lost = (await ends(swarm, "x"))["a"]
    assert lost.peer == "x"
    assert refused(swarm) == {"a": {FrameFault.CONTENT: 1}}


@pytest.mark.parametrize("lie", ["", "{", '{"loss": Infinity}', '{"grad_norm": "large"}', '{"bytes_sent": -1}'])
async def test_a_commit_that_cannot_be_read_is_the_arbiters_fault_and_nobody_applies_it(home: Path, lie: str) -> None:
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    tell(swarm, "a", Kind.COMMIT, saying(lie), Ballot.STEP)
    lost = await ends(swarm, "a")
    found = refused(swarm)
    assert found
    assert all(counts == {FrameFault.CONTENT: 1} for counts in found.values())
    assert all(lost[me].peer == "a" for me in found)


@pytest.mark.parametrize("size", [0, 1 << 10])
@pytest.mark.parametrize(("name", "liar", "kind", "victim"), [PLACES[1], PLACES[2], PLACES[4]])
async def test_a_tensor_of_another_size_is_its_senders_fault(
    home: Path, name: str, liar: str, kind: Kind, victim: str, size: int
) -> None:
    swarm = Swarm(home, job_of(home), plan_of(name))
    tell(swarm, liar, kind, lambda _: bytes(size))
    assert (await ends(swarm, liar))[victim].peer == liar
    assert refused(swarm)[victim][FrameFault.SIZE] == 1


async def test_an_evaluation_that_is_not_finite_is_its_senders_fault(home: Path) -> None:
    """The step before it is final by then."""
    swarm = Swarm(home, job_of(home), plan_of("1x2"))
    tell(swarm, "a", Kind.EVALUATION, not_finite, step=4)
    (lost,) = (await swarm.ends())["x"]
    assert isinstance(lost, PeerLost)
    assert lost.peer == "a"
    assert refused(swarm) == {"x": {FrameFault.CONTENT: 1}}
    whole = Swarm(home, job_of(home), plan_of("1x2"))
    await whole.run()
    assert identical(swarm.peers["x"].now(), whole.peers["x"].states[4])


async def test_gradients_that_overflow_are_the_mathematics_fault_and_nobodys(home: Path) -> None:
    """Where activations and what flows back are finite still."""

    class Overflowing(StageState):
        def backward(self, micro_batch: int, value: torch.Tensor | None) -> torch.Tensor | None:
            result = super().backward(micro_batch, value)
            if self.is_last and len(self.losses) == 2:
                next(iter(self.gradients.of_bucket.values()))[7] = float("inf")
            return result

    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    for peer in swarm.peers.values():
        peer.staging = Overflowing
    found = await swarm.ends()
    assert any(isinstance(error, Diverged) for errors in found.values() for error in errors)
    assert all(type(error) in {Diverged, PeerLost} for errors in found.values() for error in errors)
    assert not refused(swarm)
    for peer in swarm.peers.values():
        assert not peer.rows
        assert identical(peer.now(), peer.states[0])
