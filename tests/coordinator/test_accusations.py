"""Who accuses and who is accused are kept apart; who has fallen out with two is left out, seen by the owner."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtfm_coordinator.faults.accusations import Accusations
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from tests.coordinator.peers import LAYERS, Peers, plan_of
from tests.harness.manual_clock import ManualClock

TEXT = "b is gone: it sent a part whose norm is 30 times the most that is usual"


def said(*pairs: str) -> Accusations:
    """Accusations under one plan after the other."""
    found = Accusations()
    for plan, (accuser, accused) in enumerate(pairs, 1):
        found.reported(accuser, accused, plan)
    return found


def test_after_one_accusation_the_two_are_kept_apart_and_nobody_is_left_out() -> None:
    accusations = said("ab")
    assert accusations.apart == {frozenset("ab")}
    assert accusations.left_out == frozenset()


def test_an_accusation_is_news_once_whoever_of_the_two_says_it() -> None:
    accusations = Accusations()
    assert accusations.reported("a", "b", 1)
    assert not accusations.reported("a", "b", 2)
    assert not accusations.reported("b", "a", 3)
    assert accusations.left_out == frozenset()


def test_a_lie_that_many_see_at_once_costs_one_of_them_a_quarrel() -> None:
    """Else a second such lie would have all of them left out."""
    accusations = Accusations()
    for plan, liar in enumerate("xy", 1):
        for witness in "abcd":
            accusations.reported(witness, liar, plan)
    assert accusations.apart == {frozenset("ax"), frozenset("ay")}
    assert accusations.left_out == {"a"}


def test_what_is_known_hides_nothing_new() -> None:
    """Else a liar refuses the same peer first in every plan, and lies to all others for nothing."""
    accusations = said("xa")
    assert not accusations.reported("x", "a", 2)
    assert accusations.differed(frozenset("xb"), 2)
    assert accusations.left_out == {"x"}


def test_what_comes_between_one_that_is_left_out_and_another_is_held_against_the_first() -> None:
    """It may be in plans that cannot do without it, and would take one honest peer after the other with it."""
    accusations = said("xa", "xb", "ya", "cy")
    assert accusations.left_out == {"x", "a", "y"}
    assert accusations.differed(frozenset("xc"), 5)
    assert accusations.differed(frozenset("xd"), 6)
    assert accusations.left_out == {"x", "a", "y"}
    assert {frozenset("xc"), frozenset("xd")} <= accusations.apart


def test_who_has_provably_lied_is_left_out_and_has_no_say() -> None:
    accusations = Accusations()
    assert [accusations.proven("x") for _ in range(2)] == [True, False]
    assert accusations.left_out == {"x"}
    assert not accusations.reported("x", "a", 1)
    assert accusations.reported("a", "x", 1)
    assert accusations.reported("b", "a", 2)
    assert accusations.left_out == {"x"}
    for number in range(2 * SEEN_LIMIT):
        accusations.proven(str(number))
    assert len(accusations.left_out) == SEEN_LIMIT


def test_nobody_accuses_itself() -> None:
    assert not Accusations().reported("a", "a", 1)


def test_who_is_accused_by_two_is_left_out_and_they_are_not() -> None:
    assert said("ax", "bx").left_out == {"x"}


def test_a_liar_that_accuses_one_after_the_other_is_left_out_and_they_are_not() -> None:
    accusations = said("xa", "xb", "xc", "xd")
    assert accusations.left_out == {"x"}
    assert accusations.apart == {frozenset("xa"), frozenset("xb")}


def test_who_accuses_one_and_is_accused_by_another_is_left_out() -> None:
    assert said("xa", "bx").left_out == {"x"}


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.booleans()), max_size=60), st.integers(1, 4))
def test_liars_take_no_more_honest_peers_away_than_they_are(lies: list[tuple[int, int, bool]], liars: int) -> None:
    """Peers below `liars` accuse whom they like, or lie to them and are accused; honest ones accuse nobody else."""
    accusations = Accusations()
    for plan, (number, other, accuses) in enumerate(lies, 1):
        liar = str(number % liars)
        if liar not in accusations.left_out:  # else it has no part in the plan
            accusations.reported(*((liar, str(other)) if accuses else (str(other), liar)), plan)
    honest = [peer for peer in accusations.left_out if int(peer) >= liars]
    assert len(honest) <= liars
    if liars == 1:
        assert not honest


def test_any_number_of_accusers_fills_no_memory() -> None:
    accusations = Accusations()
    for number in range(2 * SEEN_LIMIT):
        accusations.reported(f"a{number}", f"b{number}", number + 1)
    assert len(accusations.apart) == SEEN_LIMIT


class Led(Peers):
    """Peers of a plan, and who makes the next one."""

    def __init__(self, folder: Path) -> None:
        self.time = ManualClock()
        super().__init__(folder, clock=self.time)
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]

    async def refuses(self, accuser: str, accused: str) -> None:
        """`accuser` says that it refused a frame of `accused`, and both go on to say that they are there, under the
        next plan."""
        assert self.state.plan is not None
        plan = self.state.plan.version
        said = {"plan_version": plan, "lost": (accused,), "refused": accused, "text": TEXT}
        await self.report(accuser, "stalled", **said)
        await self.time.advance(0.1)
        await self.report(accused, "stalled", plan_version=plan)
        self.state.plan = plan_of("a", "b", "c", "d", version=plan + 1)

    async def planned(self) -> Plan:
        """The next layout; what the planner saw is in its views."""
        return await LayoutMaker(self.context, self.state, self.announcer.say, None).plan_for(self.ready())

    def parted(self) -> set[str]:
        """The pairs that have no link in the view that was planned on last, each in order."""
        view = self.planner.views[-1]
        pairs = itertools.combinations(range(len(view.ids)), 2)
        return {"".join(sorted(view.ids[one] for one in pair)) for pair in pairs if view.bandwidth_gbps[pair] == 0.0}


@pytest.fixture
async def led(tmp_path: Path) -> Led:
    found = Led(tmp_path)
    await found.join("a", "b", "c", "d")
    found.state.plan = plan_of("a", "b", "c", "d")
    return found


async def test_the_next_plan_is_made_as_if_the_two_could_not_talk(led: Led) -> None:
    await led.refuses("a", "b")
    assert (await led.planned()).peers == ("a", "b", "c", "d")
    assert led.parted() == {"ab"}


async def test_who_has_fallen_out_with_two_has_no_part_in_the_next_plan(led: Led) -> None:
    await led.refuses("a", "b")
    await led.refuses("c", "b")
    assert (await led.planned()).peers == ("a", "c", "d")
    assert led.parted() == set()


async def test_a_liar_cannot_remove_one_after_the_other(led: Led) -> None:
    for accused in "bcd":
        await led.refuses("a", accused)
    assert (await led.planned()).peers == ("b", "c", "d")


async def test_where_no_plan_keeps_them_apart_they_work_together(led: Led) -> None:
    made = led.planner.plan

    def unless_parted(*arguments: object) -> Plan:
        plan = made(*arguments)  # type: ignore[arg-type]
        if led.parted():
            raise UserError("no placement keeps to pairs that can talk")
        return plan

    led.planner.plan = unless_parted  # type: ignore[method-assign, assignment]
    await led.refuses("a", "b")
    assert (await led.planned()).peers == ("a", "b", "c", "d")
    assert len(led.planner.views) == 3  # apart, together, and once more with the links that were measured for that


async def test_where_there_is_no_plan_without_it_who_is_left_out_takes_part_again(led: Led) -> None:
    led.planner.needed = 4
    await led.refuses("a", "b")
    await led.refuses("c", "b")
    assert (await led.planned()).peers == ("a", "b", "c", "d")
    assert led.parted() == {"ab", "bc"}


@pytest.mark.parametrize(
    ("accuser", "accused", "state", "plan"),
    [
        ("stranger", "b", "stalled", 1),
        ("a", "stranger", "stalled", 1),
        ("a", "b", "stalled", 2),
        ("a", "b", "training", 1),
        ("a", "", "stalled", 1),
    ],
)
async def test_only_peers_of_the_plan_in_force_accuse_and_are_accused(
    led: Led, accuser: str, accused: str, state: str, plan: int
) -> None:
    if accuser == "stranger":
        await led.join("stranger")
    lost = (accused,) if accused else ()
    await led.report(accuser, state, plan_version=plan, lost=lost, refused=accused, text=TEXT)
    assert led.state.accusations.apart == frozenset()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    lines: list[str] = []
    log.addFilter(keep := lambda record: lines.append(record.getMessage()) or True)  # type: ignore[func-returns-value]
    yield lines
    log.removeFilter(keep)


async def test_the_owner_reads_of_each_accusation_and_of_who_is_left_out(led: Led, logged: list[str]) -> None:
    await led.refuses("a", "b")
    assert logged == [f"a accuses b ({TEXT})"]
    await led.refuses("c", "b")
    assert logged[1:] == [
        f"c accuses b ({TEXT})",
        "b has fallen out with two peers: the work is divided without it where that is possible",
    ]


async def test_accusations_outlive_the_coordinator(led: Led, tmp_path: Path) -> None:
    await led.refuses("a", "b")
    assert SwarmState(tmp_path, LAYERS).accusations.record == led.state.accusations.record
    await led.refuses("c", "b")
    led.state.leave_out("d", "d signed two states")
    again = SwarmState(tmp_path, LAYERS)
    assert again.accusations.apart == {frozenset("ab"), frozenset("bc")}
    assert again.doubted == {"b", "d"}
