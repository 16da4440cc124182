"""A peer that sends what cannot be used costs the step and nothing else, and is named by whoever it sent that to."""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.stage_state import Diverged, StageState
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import VOTE_LIMIT, Ballot
from dtfm_protocol.plan.signed_commit import statement
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes
from tests.node.exchanges import SWARM, identity_of, signer_of
from tests.node.test_engine_equivalence import Swarm, home, identical, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures

STEP = 2
"""When the lie is told."""

Lie = Callable[[Bytes], Bytes]
BallotKind = Literal["vote", "commit"]


def not_finite(payload: Bytes) -> Bytes:
    """The same bytes with NaNs in front: as a value in fp32 and bf16, as a scale in fp16 and int8."""
    return np.float32("nan").tobytes() + bytes(payload)[4:]


def saying(kind: BallotKind, liar: str, text: str) -> Lie:
    """A vote or commit of other words, with the liar's own signature."""
    return lambda _: signed(kind, liar, text.encode())


def claiming(kind: BallotKind, liar: str, **fields: Any) -> Lie:
    """A vote or commit that says what is true but for these fields, with the liar's own signature."""
    return lambda payload: signed(kind, liar, json.dumps(json.loads(bytes(payload)[64:]) | fields).encode())


def signed(kind: BallotKind, liar: str, text: bytes) -> bytes:
    return signer_of(liar).sign(statement(kind, SWARM, 1, Ballot.STEP, STEP, text)) + text


def tell(swarm: Swarm, liar: str, kind: Kind, lie: Lie, index: int | None = None, step: int = STEP) -> None:
    """Have `liar` send `lie` of what it should in frames of `kind`."""

    class Lying(Exchange):
        async def send(self, peer: str, key: Key, payload: Bytes) -> None:
            if key.kind is kind and key.step == step and (index is None or key.index == index):
                payload = lie(payload)
            await super().send(peer, key, payload)

    swarm.peers[liar].exchanging = Lying.running


def remember(swarm: Swarm, sender: str, kind: Kind, sent: list[Bytes]) -> None:
    """Note all that `sender` sends in frames of `kind`."""
    inner = swarm.peers[sender].exchanging

    @contextlib.asynccontextmanager
    async def running(*arguments: Any, **options: Any) -> AsyncIterator[Exchange]:
        async with inner(*arguments, **options) as exchange:
            send = exchange.send

            async def noted(peer: str, key: Key, payload: Bytes) -> None:
                if key.kind is kind:
                    sent.append(payload)
                await send(peer, key, payload)

            exchange.send = noted  # type: ignore[method-assign]
            yield exchange

    swarm.peers[sender].exchanging = running


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
    tell(swarm, "x", Kind.VOTE, saying("vote", "x", lie), Ballot.STEP)
    lost = (await ends(swarm, "x"))["a"]
    assert lost.peer == "x"
    assert refused(swarm) == {"a": {FrameFault.CONTENT: 1}}


@pytest.mark.parametrize("lie", ["", "{", '{"loss": Infinity}', '{"grad_norm": "large"}', '{"bytes_sent": -1}'])
async def test_a_commit_that_cannot_be_read_is_the_arbiters_fault_and_nobody_applies_it(home: Path, lie: str) -> None:
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    tell(swarm, "a", Kind.COMMIT, saying("commit", "a", lie), Ballot.STEP)
    lost = await ends(swarm, "a")
    found = refused(swarm)
    assert found
    assert all(counts == {FrameFault.CONTENT: 1} for counts in found.values())
    assert all(lost[me].peer == "a" for me in found)


async def test_a_vote_with_another_peers_signature_or_none_is_its_senders_fault(home: Path) -> None:
    """`x` cannot speak for `a`, nor repeat what it signed of another step, nor add to what it signed."""
    earlier: list[Bytes] = []
    for lie in (
        lambda payload: signed("vote", "a", bytes(payload)[64:]),
        lambda payload: bytes(payload)[64:],
        lambda payload: bytes(payload)[:63],
        lambda payload: bytes(payload) + b" ",
        lambda _: earlier[0],
    ):
        swarm = Swarm(home, job_of(home), plan_of("1x2"))
        tell(swarm, "x", Kind.VOTE, lie, Ballot.STEP)
        remember(swarm, "x", Kind.VOTE, earlier)
        lost = (await ends(swarm, "x"))["a"]
        assert lost.peer == "x"
        assert refused(swarm) == {"a": {FrameFault.CONTENT: 1}}


@pytest.mark.parametrize(("name", "liar"), [("2x2", "y"), ("2x2", "b"), ("1x4", "n")])
async def test_a_vote_that_follows_another_commit_is_its_voters_fault(home: Path, name: str, liar: str) -> None:
    swarm = Swarm(home, job_of(home), plan_of(name))
    tell(swarm, liar, Kind.VOTE, claiming("vote", liar, follows="0" * 64), Ballot.STEP)
    lost = (await ends(swarm, liar))["a"]
    assert lost.peer == liar
    assert "follows another commit" in str(lost)


async def test_a_commit_that_follows_another_one_is_the_arbiters_fault(home: Path) -> None:
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    tell(swarm, "a", Kind.COMMIT, claiming("commit", "a", before="0" * 64), Ballot.STEP)
    lost = await ends(swarm, "a")
    assert all(lost[me].peer == "a" for me in refused(swarm))
    assert refused(swarm)


async def test_every_peer_holds_the_newest_commit_in_words_that_the_arbiter_has_signed(home: Path) -> None:
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    found = await swarm.run(last=3)
    (commit,) = {peer.trainer.commit for peer in swarm.peers.values() if peer.trainer is not None}
    assert commit is not None
    assert (commit.plan, commit.step) == (1, 3)
    assert commit.opened(identity_of("a").peer_id, SWARM).grad_norm == found.rows[-1].grad_norm
    with pytest.raises(Refused, match="signature is not"):
        commit.opened(identity_of("b").peer_id, SWARM)


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
