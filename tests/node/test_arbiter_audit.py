"""A commit that does not follow from the votes is the arbiter's fault; so is one whose votes it does not show."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dtfm_node.engine.arbiter_audit import ONE_IN, Answered, Auditor, audit, is_drawn
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.signed_ballots import SignedBallots
from dtfm_node.engine.step_evidence import VOTES, StepEvidence, WantVotes
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import root_of_votes
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes, Stream, Unreachable, read_message
from tests.harness.named_peers import signer_of

STEP = 5
PLAN = Plan(version=1, stages=((0, 1), (1, 2)), routes=(("a", "x"), ("b", "y")))
FOLLOWS = "7" * 64


def votes() -> dict[str, Vote]:
    first: dict[str, Any] = {"follows": FOLLOWS, "reduced": "1" * 64, "sum_squares": {0: 9.0}}
    last: dict[str, Any] = {"follows": FOLLOWS, "reduced": "2" * 64, "sum_squares": {0: 16.0}}
    return {
        "a": Vote(**first),
        "b": Vote(**first, bytes_sent=7),
        "x": Vote(**last, losses={0: 1.0}),
        "y": Vote(**last, losses={1: 2.0}),
    }


COMMIT = Commit(loss=3.0, grad_norm=5.0, bytes_sent=7, seconds=1.0)


def cast(said: dict[str, Vote], step: int = STEP, plan: int = 1, signers: dict[str, str] | None = None) -> list[bytes]:
    signed = {peer: SignedBallots(signer_of((signers or {}).get(peer, peer)), plan) for peer in PLAN.peers}
    return [signed[peer].signed(Ballot.STEP, step, said[peer]) for peer in PLAN.peers]


def look(frames: list[bytes], commit: Commit = COMMIT, own: bytes | None = None, follows: str = FOLLOWS) -> None:
    """Audit as `b`, which has sent what it should."""
    commit = commit.model_copy(update={"votes": commit.votes or root_of_votes(frames)})
    answered = Answered(STEP, commit, own or cast(votes())[PLAN.peers.index("b")], follows, 2)
    audit(PLAN, "b", answered, frames, SignedBallots(signer_of("b"), 1))


def test_a_commit_that_follows_from_its_votes_passes() -> None:
    look(cast(votes()))


@pytest.mark.parametrize("wrong", [{"loss": 2.9}, {"grad_norm": 5.000001}, {"grad_norm": 0.0}, {"bytes_sent": 6}])
def test_sums_that_are_not_those_of_the_votes_are_found(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="sums that are not those of the votes"):
        look(cast(votes()), COMMIT.model_copy(update=wrong))


def changed(peer: str, **fields: Any) -> dict[str, Vote]:
    return votes() | {peer: votes()[peer].model_copy(update=fields)}


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        (lambda: cast(changed("y", losses={1: 0.5})), "sums that are not"),
        (lambda: cast(changed("b", bytes_sent=8)), "a vote of this peer that it has not sent"),
        (lambda: cast(changed("x", follows="8" * 64)), "a vote of x that follows another commit"),
        (lambda: cast(changed("a", follows="")), "a vote of a that follows another commit"),
        (lambda: cast(changed("a", reduced="3" * 64)), "allow no commit: a, b differ in the reduced"),
        (lambda: cast(changed("y", sum_squares={0: 1.0})), "allow no commit: x, y differ in the sums of squares"),
        (lambda: cast(changed("x", losses={})), "a vote of x with no loss of micro-batch 0"),
        (lambda: cast(votes(), signers={"x": "a"}), "signature is not"),
        (lambda: [*cast(votes())[:3], cast(votes(), step=STEP - 1)[3]], "signature is not"),
        (lambda: [*cast(votes())[:3], cast(votes(), plan=2)[3]], "signature is not"),
        (lambda: [*cast(votes())[:3], b""], "without a signature"),
    ],
)
def test_votes_that_nobody_cast_or_that_allow_no_commit_are_found(
    frames: Callable[[], list[bytes]], found: str
) -> None:
    with pytest.raises(Refused, match=found):
        look(frames())


def test_votes_that_the_commit_does_not_name_are_found() -> None:
    """Whatever the arbiter shows afterwards."""
    other = root_of_votes(cast(changed("a", bytes_sent=1)))
    with pytest.raises(Refused, match="votes that the commit has not been made of"):
        look(cast(votes()), COMMIT.model_copy(update={"votes": other}))


def test_a_peer_that_was_told_another_commit_before_finds_that_the_others_follow_theirs() -> None:
    mine = votes() | {"b": votes()["b"].model_copy(update={"follows": "8" * 64})}
    frames = cast(mine)
    with pytest.raises(Refused, match="a vote of a that follows another commit"):
        look(frames, own=frames[PLAN.peers.index("b")], follows="8" * 64)


def test_about_one_step_in_eight_is_drawn_by_a_signature_that_only_the_peer_can_make() -> None:
    drawn = {name: [is_drawn(signer_of(name), 1, step) for step in range(1, 2001)] for name in ("b", "x")}
    for steps in drawn.values():
        assert sum(steps) == pytest.approx(2000 / ONE_IN, rel=0.25)
    assert drawn["b"] != drawn["x"]
    assert drawn["b"] == [is_drawn(signer_of("b"), 1, step) for step in range(1, 2001)]
    assert drawn["b"] != [is_drawn(signer_of("b"), 2, step) for step in range(1, 2001)]
    assert drawn["b"] != [is_drawn(Signer(signer_of("b").identity, "other"), 1, step) for step in range(1, 2001)]


class Bench:
    """`b`, that audits, and whatever answers as `a`."""

    def __init__(self, exchange: Exchange, network: MemoryNetwork, answer_seconds: float) -> None:
        self.exchange = exchange
        self.network = network
        self.evidence = StepEvidence(signer_of("b"), MemoryDataPlane(network, "b"), answer_seconds)
        exchange.post("a", Key(Kind.COMMIT, STEP + 1, 0), 99)

    def hear(self) -> None:
        frames = cast(votes())
        commit = COMMIT.model_copy(update={"votes": root_of_votes(frames)})
        answered = Answered(STEP, commit, frames[PLAN.peers.index("b")], FOLLOWS, 2)
        Auditor(PLAN, "b", self.exchange, self.evidence, lambda _: True).hear(answered)

    async def loses(self) -> str:
        """How the wait for the arbiter's next commit ends."""
        with pytest.raises(PeerLost) as caught:
            await self.exchange.receive("a", Key(Kind.COMMIT, STEP + 1, 0))
        assert caught.value.peer == "a"
        return str(caught.value)


@contextlib.asynccontextmanager
async def bench(answer_seconds: float = 20.0) -> AsyncIterator[Bench]:
    network = MemoryNetwork()
    async with asyncio.timeout(20), Exchange.running(MemoryDataPlane(network, "b"), 1, PLAN.peers) as exchange:
        yield Bench(exchange, network, answer_seconds)


async def test_an_arbiter_that_shows_other_votes_is_lost() -> None:
    async with bench() as one:
        a = StepEvidence(signer_of("a"), MemoryDataPlane(one.network, "a"))
        await a.listen()
        a.keep_votes(PLAN, STEP, cast(changed("y", losses={1: 0.5})))
        one.hear()
        assert (await one.loses()).endswith("a commit on step 5: votes that the commit has not been made of")


async def test_an_arbiter_that_has_no_votes_to_show_is_lost() -> None:
    async with bench() as one:
        await StepEvidence(signer_of("a"), MemoryDataPlane(one.network, "a")).listen()
        one.hear()
        assert "a commit on step 5: 0 votes" in await one.loses()


@pytest.mark.parametrize("hides", ["answers nothing", "offers nothing"])
async def test_an_arbiter_that_lives_and_hides_the_votes_is_lost_after_a_while(hides: str) -> None:
    async with bench(0.05) as one:

        async def mute(stream: Stream) -> None:
            await read_message(stream, WantVotes)
            await stream.read(1)

        if hides == "answers nothing":
            await MemoryDataPlane(one.network, "a").serve(VOTES, mute)
        one.hear()
        assert (await one.loses()).endswith("it has not given the votes on step 5 for 0.05 s")


async def test_votes_that_can_be_had_at_a_second_attempt_are_enough() -> None:
    async with bench() as one:
        found = asyncio.Event()
        ask, attempts = one.evidence.votes_of, 0

        async def votes_of(peer: str, plan: Plan, step: int) -> list[Bytes]:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise Unreachable("not yet")
            frames = await ask(peer, plan, step)
            found.set()
            return frames

        one.evidence.votes_of = votes_of  # type: ignore[method-assign]
        a = StepEvidence(signer_of("a"), MemoryDataPlane(one.network, "a"))
        await a.listen()
        a.keep_votes(PLAN, STEP, cast(votes()))
        one.hear()
        await found.wait()
        await asyncio.sleep(0)
        assert not one.exchange.lost
