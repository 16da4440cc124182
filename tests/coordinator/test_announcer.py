"""What a coordinator says of itself: what it does, and what is safe on disk."""

from pathlib import Path

from dtfm_coordinator.swarm.announcer import Announcer
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.control.messages import CHALLENGE, Answers, Challenge, Ledger
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.peer_state import Holding, Mark, PeerState
from dtfm_protocol.plan.signed_commit import SignedCommit
from tests.coordinator.peers import LAYERS, Peers, plan_of, row

ARBITER = Identity.generate()
A = ARBITER.peer_id


def on_disk(step: int) -> PeerState:
    """A snapshot of the whole model after a step of the first plan, whose arbiter is `A`."""
    commit = SignedCommit.made(ARBITER, "", 1, step, Commit())
    return PeerState(holdings=(Holding(mark=Mark(step=step, plan=1), layers=(0, LAYERS), commit=commit),))


async def test_a_state_that_two_peers_have_on_disk_is_told_as_safe_once(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of(A, "b")
    await peers.report(A, standing=on_disk(3))
    assert await peers.ledgers() == []
    for _ in range(2):
        await peers.report("b", standing=on_disk(3))
        await peers.ledgers()
    assert await peers.ledgers() == [Ledger(recorded=0, kept=0, safe=Mark(step=3, plan=1))]


async def test_what_strangers_claim_to_have_on_disk_makes_nothing_safe(tmp_path: Path) -> None:
    """Else two of them would have all peers, and the coordinator, delete what is older."""
    peers = Peers(tmp_path)
    peers.state.plan = plan_of(A, "b")
    claim = on_disk(2**31)
    for peer in ("stranger", "another"):
        await peers.report(peer, standing=claim)
    without_commit = (Holding(mark=Mark(step=2**31, plan=1), layers=(0, LAYERS)),)
    await peers.report("b", standing=PeerState(holdings=without_commit))
    assert await peers.ledgers() == []
    assert peers.state.refused.counts == {"stranger": 3, "another": 2, "b": 1}, "once a report"


async def test_who_asks_for_a_sign_of_life_is_given_the_ledger(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.say(CHALLENGE, "a", Challenge(session="one"))
    assert await peers.ledgers() == [Ledger(recorded=0, kept=0)]


async def test_a_phase_is_told_when_it_is_another_one(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    for text in ("for one", "for one", "for two"):
        await peers.announcer.say("waiting", text)
    assert [(phase.name, phase.text) for phase in peers.phases] == [("waiting", "for one"), ("waiting", "for two")]


async def test_a_safe_state_is_told_although_every_report_brings_rows(tmp_path: Path) -> None:
    """Steps may be faster than reports; peers that never hear of it write no more snapshots."""
    peers = Peers(tmp_path)
    peers.state.plan = plan_of(A, "b")
    for step in range(1, 6):
        for peer in (A, "b"):
            await peers.report(peer, "training", plan_version=1, step=step, standing=on_disk(step), rows=(row(step),))
        assert (await peers.ledgers())[-1] == Ledger(recorded=step, kept=0, safe=Mark(step=step, plan=1))


async def test_any_number_of_challenges_is_answered_together_and_each_caller_by_its_session(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    for number in range(1000):
        await peers.say(CHALLENGE, f"peer {number % 300}", Challenge(session=f"session {number}"))
    await peers.ledgers()
    (answers,) = [body for _, body in peers.control.said if isinstance(body, Answers)]
    assert answers.to[:2] == ("session 900", "session 901")
    assert len(answers.to) == SEEN_LIMIT
    assert len(await peers.ledgers()) == 1


async def test_a_phase_names_the_run_and_the_epoch_to_which_it_belongs(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    announcer = Announcer(peers.context.control, peers.state, peers.rows, "this run", lambda: 7)
    await announcer.say("failed", "it broke")
    assert [(phase.session, phase.called) for phase in peers.phases] == [("this run", 7)]
