"""A peer that sends what cannot be used costs the step and nothing else, and is named by whoever it sent that to."""

import asyncio
import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.frame_seals import FrameSeals
from dtfm_node.engine.gradient_norm import sum_of_squares
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.step_arbiter import Disputed
from dtfm_node.engine.training_stage import Diverged, TrainingStage
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Checkpointing, CodecName
from dtfm_protocol.plan.ballot import VOTE_LIMIT, Ballot
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.signed_commit import statement
from dtfm_protocol.wire.codecs import decode, encode, from_bytes, payload_bytes
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes
from tests.harness.named_peers import SWARM, identity_of, signer_of, vote_on
from tests.node.engine_swarm import STEPS, Swarm, home, identical, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow

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


def claiming(kind: BallotKind, liar: str, step: int = STEP, **fields: Any) -> Lie:
    """A vote or commit that says what is true but for these fields, with the liar's own signature."""
    return lambda payload: signed(kind, liar, json.dumps(json.loads(bytes(payload)[64:]) | fields).encode(), step)


def signed(kind: BallotKind, liar: str, text: bytes, step: int = STEP) -> bytes:
    return signer_of(liar).sign(statement(kind, SWARM, 1, Ballot.STEP, step, text)) + text


def resealed(liar: str, key: Key, payload: Bytes, codec: CodecName) -> bytes:
    """The liar's own seal on what it sends."""
    squares = 0.0
    with contextlib.suppress(Refused):
        squares = sum_of_squares(decode(from_bytes(payload), codec, (len(payload) // 4,)))  # as fp32 has it
    return FrameSeals(signer_of(liar), 1).seal(key, hashlib.sha256(payload).digest(), squares).signature


def tell(
    swarm: Swarm,
    liar: str,
    kind: Kind,
    lie: Lie,
    index: int | None = None,
    step: int = STEP,
    victims: Collection[str] | None = None,
) -> None:
    """Have `liar` send `lie` of what it should in frames of `kind`, to all or to some."""

    class Lying(Exchange):
        async def send(self, peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
            told = victims is None or peer in victims
            if told and key.kind is kind and key.step == step and (index is None or key.index == index):
                payload = lie(payload)
                seal = seal and resealed(liar, key, payload, swarm.plan.wire.gradients)
            await super().send(peer, key, payload, seal)

    swarm.peers[liar].exchanging = Lying.running


def remember(swarm: Swarm, sender: str, kind: Kind, sent: list[Bytes]) -> None:
    """Note all that `sender` sends in frames of `kind`."""
    inner = swarm.peers[sender].exchanging

    @contextlib.asynccontextmanager
    async def running(*arguments: Any, **options: Any) -> AsyncIterator[Exchange]:
        async with inner(*arguments, **options) as exchange:
            send = exchange.send

            async def noted(peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
                if key.kind is kind:
                    sent.append(payload)
                await send(peer, key, payload, seal)

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


@pytest.mark.parametrize(
    ("name", "liar", "kind", "victim", "step"),
    [
        ("1x4", "m", Kind.ACTIVATION, "n", STEP),
        ("1x4", "n", Kind.GRADIENT, "m", STEP),
        ("1x4", "m", Kind.EVALUATION, "n", 4),
    ],
)
async def test_a_message_in_another_codec_than_its_boundarys_is_its_senders_fault(
    home: Path, name: str, liar: str, kind: Kind, victim: str, step: int
) -> None:
    """The plan's own wire, which the other boundaries have."""

    def in_fp32(payload: Bytes) -> bytes:
        values = next(count for count in range(len(payload)) if payload_bytes("int8", (count,)) == len(payload))
        return bytes(encode(decode(from_bytes(payload), "int8", (values,)), "fp32").numpy())

    swarm = Swarm(home, job_of(home), plan_of(name, boundaries=["fp32", "int8", "fp32"]))
    tell(swarm, liar, kind, in_fp32, step=step)
    lost, *_ = (await swarm.ends())[victim]
    assert isinstance(lost, PeerLost)
    assert lost.peer == liar
    assert re.search(r"bytes for \w+ \d of step \d where \d+ belong", str(lost))
    assert refused(swarm) == {victim: {FrameFault.SIZE: 1}}


@pytest.mark.parametrize("kind", [Kind.PART, Kind.REDUCED])
async def test_each_who_is_sent_a_lie_refuses_it_unless_another_has_left_before(home: Path, kind: Kind) -> None:
    swarm = Swarm(home, job_of(home), plan_of("4x1"))
    tell(swarm, "c", kind, not_finite)
    lost = await ends(swarm, "c")
    found, left = refused(swarm), {"c"}
    assert all(counts == {FrameFault.CONTENT: 1} for counts in found.values())
    # Who refuses leaves; another one may hear of that before it has looked at what it was sent, and leave in turn.
    assert any(lost[me].peer == "c" for me in found)
    for _ in lost:
        left |= {me for me in lost if lost[me].peer in left}
    assert left == {"c", *lost}


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


def negated(payload: Bytes) -> Bytes:
    """Other values, of the same norm."""
    return (-np.frombuffer(payload, np.float32)).tobytes()


@pytest.mark.parametrize("victims", [("c",), ("a", "c"), ("d",)])
async def test_an_owner_that_gives_holders_unlike_sums_is_named_by_its_own_seals(
    home: Path, victims: tuple[str, ...]
) -> None:
    """Each frame is right by itself, and has the norm that it should."""
    swarm = Swarm(home, job_of(home), plan_of("4x1"))
    tell(swarm, "b", Kind.REDUCED, negated, victims=victims)
    lost = (await ends(swarm, "b"))["a"]
    assert lost.peer == "b"
    assert "different contents as REDUCED 1 of bucket 0 of step 2 to different peers, of step 2" in str(lost)


async def test_an_owner_of_shared_embeddings_that_gives_the_ends_unlike_sums_is_named(home: Path) -> None:
    """Replicas of each end agree among themselves, and the norm is the same."""
    swarm = Swarm(home, job_of(home, tied=True), plan_of("2x2"))
    tell(swarm, "b", Kind.REDUCED, negated, victims=("x", "y"))
    lost = (await ends(swarm, "b"))["a"]
    assert lost.peer == "b"
    assert "different contents as REDUCED 1 of bucket 32768" in str(lost)


@pytest.mark.parametrize(
    ("claims", "done"),
    [
        ({"reduced": "0" * 64}, "receipts that do not give the root of its vote"),
        ({"reduced": ""}, "receipts that do not give the root of its vote"),
        ({"sum_squares": {"0": 1e-9}}, "receipts that do not give the sums of squares of its vote"),
        ({"sum_squares": {}}, "receipts that do not give the sums of squares of its vote"),
    ],
)
@pytest.mark.parametrize(("name", "liar"), [("4x1", "c"), ("2x2", "y"), ("2x2", "b")])
async def test_a_holder_that_votes_what_it_did_not_get_is_named(
    home: Path, name: str, liar: str, claims: dict[str, Any], done: str
) -> None:
    """Also in a stage that is not the arbiter's own."""
    swarm = Swarm(home, job_of(home), plan_of(name))
    tell(swarm, liar, Kind.VOTE, claiming("vote", liar, **claims), Ballot.STEP)
    lost = (await ends(swarm, liar))["a"]
    assert lost.peer == liar
    assert done in str(lost)


async def test_a_holder_that_differs_and_shows_no_receipts_is_named(home: Path) -> None:
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    tell(swarm, "y", Kind.VOTE, claiming("vote", "y", reduced="0" * 64), Ballot.STEP)
    swarm.peers["y"].evidence.listen = nothing  # type: ignore[method-assign]
    lost = (await ends(swarm, "y"))["a"]
    assert lost.peer == "y"
    assert "no receipts, of step 2" in str(lost)


def state(peer: str, digest: str) -> dict[str, Any]:
    layers = plan_of("2x2").stages[1]
    vote = vote_on(peer, Mark(step=1, plan=1), layers, digest * 64)
    return vote.model_dump(mode="json") | {"peer": peer}


async def test_replicas_that_differ_in_a_state_end_the_step_and_both_are_said(home: Path) -> None:
    """The votes do not tell whose state is the right one."""
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    for digest, liar in enumerate(("x", "y")):
        tell(swarm, liar, Kind.VOTE, claiming("vote", liar, state=state(liar, str(digest))), Ballot.STEP)
    found = await swarm.ends()
    (dispute,) = found["a"]
    assert isinstance(dispute, Disputed)
    assert [(one.peer, one.digest[0]) for one in dispute.evidence] == [("x", "0"), ("y", "1")]
    assert str(dispute) == "x, y differ in the state that the same steps have led to"
    assert not refused(swarm)
    assert all([row.step for row in peer.rows] == [1] for peer in swarm.peers.values())


async def test_a_peer_that_votes_two_digests_of_one_state_is_named(home: Path) -> None:
    swarm = Swarm(home, job_of(home), plan_of("2x2"))

    class Lying(Exchange):
        async def send(self, peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
            if key.kind is Kind.VOTE and key.index == Ballot.STEP:
                payload = claiming("vote", "y", key.step, state=state("y", str(key.step)))(payload)
            await super().send(peer, key, payload, seal)

    swarm.peers["y"].exchanging = Lying.running
    found = await swarm.ends()
    (dispute,) = found["a"]
    assert isinstance(dispute, Disputed)
    assert dispute.peers == ("y",)
    assert [one.peer for one in dispute.evidence] == ["y", "y"]
    assert len({one.digest for one in dispute.evidence}) == 2


async def test_a_vote_on_a_state_that_its_voter_has_not_signed_is_its_fault(home: Path) -> None:
    """Else it would be no evidence, and whoever lies would end plans unseen."""
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    unsigned = state("y", "1") | {"signature": "0" * 128}
    tell(swarm, "y", Kind.VOTE, claiming("vote", "y", state=unsigned), Ballot.STEP)
    assert (await ends(swarm, "y"))["a"].peer == "y"


@pytest.mark.parametrize("claims", [{"reduced": "0" * 64}, {"sum_squares": {"0": 1.0}}])
async def test_a_vote_on_gradients_in_an_evaluation_is_its_voters_fault(home: Path, claims: dict[str, Any]) -> None:
    """Held against the receipts of the step before, it would make the honest seem to lie."""
    swarm = Swarm(home, job_of(home), plan_of("2x2"))

    def lie(payload: Bytes) -> bytes:
        text = json.dumps(json.loads(bytes(payload)[64:]) | claims).encode()
        return signer_of("y").sign(statement("vote", SWARM, 1, Ballot.EVALUATION, 4, text)) + text

    tell(swarm, "y", Kind.VOTE, lie, Ballot.EVALUATION, step=4)
    (lost,) = (await swarm.ends())["a"]
    assert isinstance(lost, PeerLost)
    assert lost.peer == "y"
    assert "a vote of y on gradients, where there are none" in str(lost)


async def nothing() -> None:
    pass


async def test_an_arbiter_that_makes_up_a_sum_is_found_by_those_who_ask_for_the_votes(home: Path) -> None:
    """It tells all the same, so that nobody's next vote differs."""
    job = job_of(home).model_copy(update={"checkpoint": Checkpointing(every=STEP)})  # that step is audited by all
    swarm = Swarm(home, job, plan_of("2x2"))
    others = {me: peer for me, peer in swarm.peers.items() if me != "a"}
    left, ended = set(others), asyncio.Event()

    @contextlib.asynccontextmanager
    async def noted(me: str, *arguments: Any, **options: Any) -> AsyncIterator[Exchange]:
        try:
            async with Exchange.running(*arguments, **options) as exchange:
                yield exchange
        finally:
            left.discard(me)
            if not left:
                ended.set()

    class Lying(Exchange):
        async def send(self, peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
            if key.kind is Kind.COMMIT and (key.step, key.index) == (STEP, Ballot.STEP):
                payload = claiming("commit", "a", grad_norm=1e6)(payload)
            await super().send(peer, key, payload, seal)
            if key.kind is Kind.COMMIT and key.step == STEP and peer == swarm.plan.peers[-1]:
                await ended.wait()  # it answers who asks, and does nothing else

    swarm.peers["a"].exchanging = Lying.running
    for me, other in others.items():
        other.exchanging = partial(noted, me)
    await swarm.ends()
    for other in others.values():
        assert other._exchange is not None
        why = str(other._exchange.lost["a"])
        assert why.endswith("a commit on step 2: a commit with sums that are not those of the votes")
        assert [row.step for row in other.rows] == [1, 2]


async def test_an_honest_arbiter_passes_every_audit(home: Path) -> None:
    job = job_of(home).model_copy(update={"checkpoint": Checkpointing(every=1)})
    swarm = Swarm(home, job, plan_of("2x2"))
    asked: list[int] = []
    for peer in swarm.peers.values():

        async def votes_of(*what: Any, ask: Callable[..., Any] = peer.evidence.votes_of) -> Any:
            asked.append(what[-1])
            return await ask(*what)

        peer.evidence.votes_of = votes_of  # type: ignore[method-assign]
    await swarm.run()
    assert not refused(swarm)
    assert [asked.count(step) for step in range(1, STEPS)] == [3] * (STEPS - 1)


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

    class Overflowing(TrainingStage):
        def backward(self, micro_batch: int, value: torch.Tensor | None) -> torch.Tensor | None:
            result = super().backward(micro_batch, value)
            if self.is_last and len(self.losses) == 2:
                next(iter(self.gradients.of_bucket.values()))[7] = float("inf")
            return result

    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    for peer in swarm.peers.values():
        peer.training_stage = Overflowing
    found = await swarm.ends()
    assert any(isinstance(error, Diverged) for errors in found.values() for error in errors)
    assert all(type(error) in {Diverged, PeerLost} for errors in found.values() for error in errors)
    assert not refused(swarm)
    for peer in swarm.peers.values():
        assert not peer.rows
        assert identical(peer.now(), peer.states[0])
