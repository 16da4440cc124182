"""One peer's word that training has diverged ends no run; two words do, or one where nobody else can say."""

import asyncio
from pathlib import Path

import pytest

from dtfm_coordinator.faults.divergence import REPEATS, Divergence
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.plan_watch import Failed, PlanWatch
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.coordinator.peers import Peers, plan_of
from tests.harness.manual_clock import ManualClock

TEXT = "step 8: loss or gradients are not finite"


def said(words: Divergence, *peers: str, plan: int = 1, step: int = 7) -> Divergence:
    for peer in peers:
        words.reported(peer, plan, step, TEXT, alone=False)
    return words


def test_one_peers_word_ends_nothing_however_often_it_is_repeated_under_a_plan() -> None:
    words = Divergence()
    for _ in range(10):
        said(words, "liar")
    assert (words.verdict, words.doubted) == ("", {"liar"})


def test_a_second_peers_word_on_the_same_step_ends_the_run_and_both_are_named() -> None:
    words = said(Divergence(), "a", "b")
    assert words.verdict == f"{TEXT} (so say a, b, after step 7)"
    assert words.doubted == frozenset()


def test_whoever_takes_its_place_confirms_it_under_the_next_plan() -> None:
    assert said(said(Divergence(), "a"), "b", plan=2).verdict


def test_words_on_unlike_steps_confirm_nothing() -> None:
    words = said(said(Divergence(), "liar", step=7), "b", step=40)
    assert (words.verdict, words.doubted) == ("", {"liar", "b"})


def test_a_peer_that_nobody_can_stand_in_for_is_believed_in_the_end() -> None:
    words = Divergence()
    for plan in range(1, REPEATS + 1):
        assert not words.verdict
        said(words, "a", plan=plan)
    assert words.verdict


def test_a_peer_that_says_it_of_one_step_after_the_other_is_not_believed() -> None:
    words = Divergence()
    for plan in range(1, 10 * REPEATS):
        said(words, "liar", plan=plan, step=plan)
    assert not words.verdict


def test_the_only_peer_of_a_plan_is_believed() -> None:
    words = Divergence()
    words.reported("a", 1, 7, TEXT, alone=True)
    assert words.verdict


def test_any_number_of_peers_fills_no_memory() -> None:
    words = Divergence()
    for number in range(2 * SEEN_LIMIT):
        said(words, str(number), step=number)
    assert len(words.doubted) == SEEN_LIMIT


class Led(Peers):
    """Peers of a plan, and who watches over it."""

    def __init__(self, folder: Path) -> None:
        self.time = ManualClock()
        super().__init__(folder, clock=self.time)
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]
        self.watch = PlanWatch(self.state, self.context.planner, self.time.now)

    async def diverged(self, *peers: str, plan: int = 1) -> None:
        for peer in peers:
            await self.report(peer, "diverged", plan_version=plan, step=7, text=TEXT)

    def why(self) -> str:
        assert self.state.plan is not None
        return self.watch.broken(self.state.plan)


@pytest.fixture
async def led(tmp_path: Path) -> Led:
    found = Led(tmp_path)
    await found.join("a", "b", "c")
    found.state.plan = plan_of("a", "b")
    return found


async def test_a_run_goes_on_without_the_one_who_alone_says_that_it_has_diverged(led: Led) -> None:
    await led.diverged("a")
    assert led.why() == f"a alone says that training diverged ({TEXT})"
    maker = LayoutMaker(led.context, led.state, led.announcer.say, None)
    assert (await maker.plan_for(led.ready())).peers == ("b", "c")


async def test_the_one_who_is_doubted_is_given_work_where_there_is_no_plan_without_it(led: Led) -> None:
    await led.diverged("a")
    led.planner.needed = 3
    maker = LayoutMaker(led.context, led.state, led.announcer.say, None)
    assert (await maker.plan_for(led.ready())).peers == ("a", "b", "c")


async def test_a_run_that_two_peers_say_has_diverged_ends(led: Led) -> None:
    await led.diverged("a", "b")
    with pytest.raises(Failed, match=r"training diverged: step 8.* \(so say a, b, after step 7\)"):
        led.why()


@pytest.mark.parametrize("peer", ["c", "stranger"])
async def test_who_has_no_part_in_the_plan_has_no_word_in_it(led: Led, peer: str) -> None:
    await led.diverged("a", peer)
    await led.diverged("b", plan=2)
    assert led.why().startswith("a alone")


async def test_the_others_are_waited_for_a_moment_and_no_longer(led: Led) -> None:
    plan = led.state.plan
    assert plan is not None
    assert await asyncio.wait_for(led.watch.why_broken(plan), 30) == ""
    await led.diverged("a")
    waiting = asyncio.create_task(led.watch.why_broken(plan))
    await led.time.advance(TIMEOUTS.report_silence - 0.1)
    assert not waiting.done()
    await led.time.advance(0.2)
    assert (await asyncio.wait_for(waiting, 30)).startswith("a alone")


async def test_a_second_word_in_that_moment_ends_the_run_at_once(led: Led) -> None:
    assert led.state.plan is not None
    await led.diverged("a")
    waiting = asyncio.create_task(led.watch.why_broken(led.state.plan))
    await asyncio.sleep(0)
    await led.diverged("b")
    with pytest.raises(Failed):
        await asyncio.wait_for(waiting, 30)


async def test_a_run_that_has_diverged_can_be_tried_again_with_other_values(led: Led) -> None:
    plan = led.state.plan
    assert plan is not None
    assert not led.watch.is_said_to_diverge(plan)
    await led.diverged("a")
    assert led.watch.is_said_to_diverge(plan)
    await led.diverged("b")
    led.state.divergence.forget()
    led.state.plan = plan.model_copy(update={"version": 2})
    assert led.why() == ""
    assert not led.watch.is_said_to_diverge(led.state.plan)
    await led.diverged("a", "b", plan=2)
    with pytest.raises(Failed):
        led.why()
