"""One replica's false word on the state ends no run: the plan is over, the two are kept apart, and a liar is found."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from dtfm_coordinator.faults.accusations import Accusations
from dtfm_coordinator.faults.state_disputes import REPEATS, StateDisputes
from dtfm_coordinator.leader.plan_watch import Failed, PlanWatch
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.plan.peer_state import Holding, PeerState
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.state_vote import StateVote
from tests.coordinator.peers import LAYERS, Peers
from tests.harness.named_peers import id_of, identity_of, vote_on

A, B, C, X, Y, Z = map(id_of, "abcxyz")
FRONT, BACK = (0, 2), (2, LAYERS)
ONE, TWO = "1" * 64, "2" * 64
SAID = "they differ"


def pair(one: str, other: str) -> frozenset[str]:
    return frozenset((one, other))


def test_a_dispute_ends_the_plan_that_made_the_state_and_no_other() -> None:
    disputes = StateDisputes()
    assert disputes.under(3) == ""
    disputes.heard(pair(A, B), 3, SAID)
    disputes.heard(pair(A, C), 3, "and more")
    assert disputes.under(3) == SAID
    assert (disputes.under(2), disputes.under(4), disputes.verdict) == ("", "", "")


def test_two_without_whom_no_plan_can_do_end_the_run_in_the_end() -> None:
    disputes = StateDisputes()
    for plan in range(1, REPEATS + 1):
        assert disputes.verdict == ""
        for _ in range(3):
            disputes.heard(pair(A, B), plan, SAID)
    assert all(short(peer) in disputes.verdict for peer in (A, B))
    assert f"under {REPEATS} plans" in disputes.verdict


def test_disputes_that_a_third_peer_has_made_do_not_count_towards_the_end_of_the_run() -> None:
    disputes = StateDisputes()
    for plan in range(1, 2 * REPEATS):
        disputes.heard(pair(A, B), plan, SAID)
        disputes.excuse(plan)
        assert (disputes.under(plan), disputes.verdict) == (SAID, "")


def test_ever_more_disputes_take_no_more_memory() -> None:
    disputes = StateDisputes()
    for plan in range(SEEN_LIMIT + 10):
        disputes.heard(pair(f"p{plan}", f"q{plan}"), plan, SAID)
    assert len(disputes._plans) == SEEN_LIMIT


class Led(Peers):
    """Replicas a and b of the first stage, x and y of the second, c and z as spares."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]
        self.watch = PlanWatch(self.state, self.context.planner)
        self.follows((A, B), (X, Y))

    def follows(self, first: tuple[str, ...], second: tuple[str, ...]) -> None:
        """The next plan is in force."""
        version = self.state.plan.version + 1 if self.state.plan is not None else 1
        routes = tuple(zip(first, second, strict=True))
        self.state.plan = Plan(version=version, stages=(FRONT, BACK), routes=routes)

    @property
    def plan(self) -> Plan:
        assert self.state.plan is not None
        return self.state.plan

    def vote(self, name: str, digest: str, step: int = 10, plan: int | None = None) -> StateVote:
        mark = Mark(step=step, plan=self.plan.version if plan is None else plan)
        stage = self.plan.stage_of(id_of(name))
        return vote_on(name, mark, self.plan.stages[stage or 0], digest, swarm="")

    async def snapshot(self, name: str, *votes: StateVote) -> None:
        """A report of a peer that has written a snapshot, with the votes on it."""
        holding = Holding(mark=votes[0].mark, layers=votes[0].layers, votes=votes)
        fields = {"plan_version": self.plan.version, "standing": PeerState(holdings=(holding,))}
        await self.report(id_of(name), "training", **fields)


@pytest.fixture
async def led(tmp_path: Path) -> Led:
    found = Led(tmp_path)
    await found.join(A, B, C, X, Y, Z)
    for peer in (A, B, X, Y):
        await found.report(peer, "training", plan_version=1, step=1)
    return found


async def test_replicas_that_agree_break_nothing(led: Led) -> None:
    await led.snapshot("a", led.vote("a", ONE))
    await led.snapshot("b", led.vote("b", ONE))
    await led.snapshot("x", led.vote("x", TWO))
    assert led.watch.broken(led.plan) == ""
    assert led.state.accusations.apart == frozenset()


async def by_snapshots(led: Led) -> None:
    await led.snapshot("a", led.vote("a", ONE))
    await led.snapshot("b", led.vote("b", TWO))


async def by_an_arbiters_evidence(led: Led) -> None:
    evidence = (led.vote("a", ONE), led.vote("b", TWO))
    await led.report(X, "stalled", plan_version=1, evidence=evidence)


async def at_hand_in(led: Led) -> None:
    led.state.differ(((A, B),), SAID)


@pytest.mark.parametrize("heard", [by_snapshots, by_an_arbiters_evidence, at_hand_in])
async def test_replicas_that_differ_end_their_plan_and_are_kept_apart(led: Led, heard: Callable[[Led], object]) -> None:
    await heard(led)  # type: ignore[misc]
    assert led.watch.broken(led.plan)
    assert led.state.accusations.apart == {pair(A, B)}
    assert led.state.doubted == frozenset()
    led.follows((A, C), (X, Y))
    for peer in (A, C, X, Y):
        await led.report(peer, "training", plan_version=2, step=1)
    assert led.watch.broken(led.plan) == ""


async def test_a_liar_costs_a_plan_with_each_of_two_and_is_left_out(led: Led) -> None:
    """Whichever stage it goes to next."""
    await by_snapshots(led)
    led.follows((C, Z), (X, B))
    await led.snapshot("x", led.vote("x", ONE))
    await led.snapshot("b", led.vote("b", TWO))
    assert led.state.accusations.apart == {pair(A, B), pair(X, B)}
    assert led.state.doubted == {B}


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
@pytest.mark.parametrize("liar", "abc")
async def test_of_three_that_no_plan_parts_the_one_that_differs_from_both_others_is_left_out(
    led: Led, liar: str, order: tuple[str, ...]
) -> None:
    """Whoever is heard first: with the same two at odds again and again, the run would end."""
    for _ in range(2):
        led.follows((A, B, C), (X, Y, Z))
        votes = {name: led.vote(name, TWO if name == liar else ONE) for name in order}
        for name in order:
            await led.snapshot(name, votes[name])
        assert led.watch.broken(led.plan)
    assert led.state.doubted == {id_of(liar)}


async def test_of_one_plan_one_quarrel_counts_however_many_a_liar_begins(led: Led) -> None:
    """An arbiter that gathers old votes cannot have all of them left out."""
    for step, (one, other) in enumerate((("a", "b"), ("x", "y")), 10):
        await led.snapshot(one, led.vote(one, ONE, step))
        await led.snapshot(other, led.vote(other, TWO, step))
    assert led.state.accusations.apart == {pair(A, B)}


async def test_a_dispute_over_what_an_earlier_plan_has_made_does_not_end_this_one(led: Led) -> None:
    """Nobody goes on from it, and whoever differs is known."""
    early = [led.vote("a", ONE), led.vote("b", TWO)]
    before = led.plan
    resume = Resume(mark=Mark(step=20, plan=1))
    lineage = before.chain.plans
    led.state.plan = Plan(version=2, stages=(FRONT, BACK), routes=((A, X), (B, Y)), resume=resume, lineage=lineage)
    await led.snapshot("a", early[0])
    await led.snapshot("b", early[1])
    assert led.state.disputes.under(2) == ""
    assert led.state.accusations.apart == {pair(A, B)}


async def test_who_signs_two_states_is_gone_alone(led: Led) -> None:
    await led.report(X, "training", plan_version=1, evidence=(led.vote("b", ONE), led.vote("b", TWO)))
    assert led.state.accusations.apart == frozenset()
    assert short(B) in led.watch.broken(led.plan)
    assert led.state.members.missing(led.plan.peers) == [B]


async def test_who_signs_two_states_and_comes_back_is_not_put_into_the_next_plan(
    led: Led, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it ends one plan after the other, each with a new session."""
    for step in range(10, 13):
        await led.report(X, "training", plan_version=1, evidence=(led.vote("b", ONE, step), led.vote("b", TWO, step)))
    await led.hello(B, session="another")
    await led.report(B, "idle", session="another")
    assert led.state.members.missing(led.plan.peers) == []
    assert led.state.doubted == {B}
    assert sum("going on without it" in record.message for record in caplog.records) == 1


def told(step: int, norm: float, before: str = "", by: str = "a") -> Holding:
    """What a peer has made of the commit on a step that `by` told it."""
    commit = Commit(grad_norm=norm, before=before)
    signed = SignedCommit.made(identity_of(by), "", 1, step, commit)
    return Holding(mark=Mark(step=step, plan=1), layers=BACK, live=True, commit=signed)


def digest(holding: Holding) -> str:
    assert holding.commit is not None
    return holding.commit.digest


UNLIKE = {
    "of one step": (told(11, 1.0), told(11, 2.0)),
    "of two steps": (told(12, 1.0, before=digest(told(11, 1.0))), told(11, 2.0)),
}


@pytest.mark.parametrize("first", ["the votes", "the commits"])
@pytest.mark.parametrize("unlike", UNLIKE.values(), ids=UNLIKE)
async def test_an_arbiter_that_leads_replicas_to_unlike_states_is_gone_and_they_stay(
    led: Led, unlike: tuple[Holding, Holding], first: str
) -> None:
    """Else it has one honest pair after the other fall out, and left out at last."""

    async def show() -> None:
        for peer, holding in zip((X, Y), unlike, strict=True):
            await led.report(peer, "stalled", plan_version=1, standing=PeerState(holdings=(holding,)))

    if first == "the commits":
        await show()
    await led.report(A, "stalled", plan_version=1, evidence=(led.vote("x", ONE), led.vote("y", TWO)))
    await show()
    assert led.state.accusations.apart == frozenset()
    assert led.state.doubted == {A}
    assert A not in led.state.standings
    assert led.watch.broken(led.plan)


ONE_STORY = {
    "the same": (told(11, 1.0), told(11, 1.0)),
    "one after the other": (told(12, 1.0, before=digest(told(11, 1.0))), told(11, 1.0)),
    "by somebody else": (told(11, 1.0), told(11, 2.0, by="y")),
}


@pytest.mark.parametrize("shown", ONE_STORY.values(), ids=ONE_STORY)
async def test_an_arbiter_that_told_all_the_same_is_blamed_for_no_dispute(
    led: Led, shown: tuple[Holding, Holding]
) -> None:
    """Else whoever differs takes it out of the run."""
    for peer, holding in zip((X, Y), shown, strict=True):
        await led.report(peer, "stalled", plan_version=1, standing=PeerState(holdings=(holding,)))
    await led.report(A, "stalled", plan_version=1, evidence=(led.vote("x", ONE), led.vote("y", TWO)))
    assert led.state.accusations.apart == {pair(X, Y)}
    assert led.state.doubted == frozenset()


@pytest.mark.parametrize("lie", ["forged", "of a stranger", "of another stage"])
async def test_evidence_that_proves_nothing_ends_nothing(led: Led, lie: str) -> None:
    """Else an arbiter takes whom it likes out of the run."""
    votes = {
        "forged": led.vote("b", ONE).model_copy(update={"digest": TWO}),
        "of a stranger": led.vote("c", TWO),
        "of another stage": vote_on("x", Mark(step=10, plan=1), FRONT, TWO, swarm=""),
    }
    await led.report(X, "training", plan_version=1, evidence=(led.vote("a", ONE), votes[lie]))
    assert led.watch.broken(led.plan) == ""
    assert led.state.accusations.apart == frozenset()


async def test_a_dispute_outlives_the_coordinator(led: Led, tmp_path: Path) -> None:
    await by_snapshots(led)
    again = Led(tmp_path)
    await again.join(A, B, C, X, Y, Z)
    again.state.recall_disputes()
    assert again.watch.broken(again.plan) == led.watch.broken(led.plan)
    assert again.state.accusations.apart == {pair(A, B)}


async def test_where_no_plan_parts_them_the_run_ends_and_says_why(led: Led) -> None:
    for _ in range(REPEATS):
        await by_snapshots(led)
        if led.state.disputes.verdict:
            break
        led.follows((A, B), (X, Y))
    with pytest.raises(Failed, match="signed different states under 3 plans"):
        led.watch.broken(led.plan)


async def test_a_liar_that_refuses_another_peer_first_ends_no_run(led: Led) -> None:
    """A plan's one quarrel is taken then; all the same the next plans have to do without the two together."""
    for _ in range(REPEATS):
        await led.report(B, "stalled", plan_version=led.plan.version, refused=X)
        await by_snapshots(led)
        assert led.watch.broken(led.plan)
        if led.state.doubted:
            break
        led.follows((A, B), (X, Y))
    assert led.state.doubted == {B}
    assert led.state.accusations.apart == {pair(B, X), pair(A, B)}


def test_one_liar_never_ends_a_run_that_can_do_without_it() -> None:
    """Every way in which one of five can dispute with whom it is put together, as long as it is in plans at all."""
    for partners in itertools.product("abcd", repeat=4):
        accusations, disputes = Accusations(), StateDisputes()
        for plan, partner in enumerate(partners, 1):
            parted = pair("l", partner) in accusations.apart
            if "l" in accusations.left_out or parted:
                continue  # such a plan is not made while others are possible
            accusations.reported("l", partner, plan)
            disputes.heard(pair("l", partner), plan, SAID)
        assert disputes.verdict == ""
        assert accusations.left_out <= {"l"}
        assert ("l" in accusations.left_out) == (len(set(partners)) > 1)
