"""A run stands still as its owner wishes, with its state kept, and goes on when that is wanted."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.leader.plan_watch import Change
from dtfm_coordinator.leader.standstill import MOST_ATTEMPTS, Standstill
from dtfm_coordinator.owner.owner_desk import OwnerDesk
from dtfm_coordinator.owner.owner_wishes import (
    Cancelled,
    CheckpointWanted,
    FinishWanted,
    OwnerRecord,
    Paused,
    PlanWanted,
    Resumed,
    WishAnswer,
)
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_protocol.control.messages import Epoch
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.coordinator.peers import Peers, plan_of, row
from tests.harness.manual_clock import ManualClock, settle


class Calls:
    """A driver of changes of plan that ends a plan at once."""

    def __init__(self) -> None:
        self.epoch = Epoch(called=1, in_force=1)
        self.made: list[tuple[bool, bool]] = []
        """Whether each call was gentle, and asked for a checkpoint."""

    async def call(self, *, gently: bool = False, parked: bool = False) -> int:
        self.made.append((gently, parked))
        self.epoch = Epoch(called=self.epoch.called + 1, gently=gently, parked=parked, in_force=self.epoch.in_force)
        return self.epoch.called


class Steered(Peers):
    """Two peers under a plan, and their run's owner."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, clock=ManualClock())
        self.folder, self.calls, self.is_receiving = folder, Calls(), False
        self.can_plan = True
        self.noted: list[int] = []
        """Steps whose checkpoints are never to be deleted."""
        self.desk = OwnerDesk(WishFile(folder), clock=lambda: 5.0)
        calls: Any = self.calls
        self.still = Standstill(
            self.state,
            calls,
            self.rows,
            self.desk,
            self.announcer.say,
            lambda: 90,
            is_receiving=lambda: self.is_receiving,
            can_plan=lambda: self.can_plan,
            keep_for_good=self.noted.append,
        )

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.state.clock, ManualClock)
        return self.state.clock

    async def trains(self, last: int = 7) -> None:
        """They have come to step `last` under plan 1."""
        self.state.plan = plan_of("a", "b")
        await self.join("a", "b")
        for peer in "ab":
            await self.report(peer, "training", plan_version=1, step=last)
        for step in range(1, last + 1):
            self.rows.append(row(step))

    def keeps(self, step: int) -> None:
        """The checkpoint of a step has become whole."""
        self.state.kept = Mark(step=step, plan=1)
        self.state.notify()

    async def diverges(self) -> None:
        """Step 8 is not finite, as both find."""
        for peer in "ab":
            await self.report(peer, "diverged", plan_version=1, step=7, text="step 8: loss or gradients are not finite")

    async def wishes(self, kind: type[OwnerRecord]) -> int:
        """The owner's command writes a wish, and the coordinator reads it."""
        wish: Any = kind(at=1.0)
        number = WishFile(self.folder).add(wish).number
        self.desk.look()
        self.state.notify()
        await settle()
        return number

    def answer(self, number: int) -> WishAnswer:
        """What a command that looks into the file finds."""
        return WishFile(self.folder).wishes.answers[number]

    def is_answered(self, number: int) -> bool:
        return number in WishFile(self.folder).wishes.answers

    async def holding(self) -> "asyncio.Task[Change | None]":
        task = asyncio.create_task(self.still.hold())
        await settle()
        return task


@pytest.fixture
def steered(tmp_path: Path) -> Steered:
    return Steered(tmp_path)


async def test_a_pause_ends_the_plan_with_a_step_and_holds_once_its_state_is_kept(steered: Steered) -> None:
    await steered.trains(7)
    number = await steered.wishes(Paused)
    holding = await steered.holding()
    assert steered.calls.made == [(True, True)]
    assert not steered.is_answered(number)
    assert not steered.announcer.phase.paused
    steered.rows.append(row(8))  # the step that was under way
    steered.keeps(7)
    await settle()
    assert not steered.is_answered(number)
    steered.keeps(8)
    await settle()
    assert steered.answer(number).text == "paused after step 8 of 90; its state is kept"
    phase = steered.announcer.phase
    assert (phase.name, phase.text, phase.paused) == (
        "waiting",
        "paused by the owner after step 8 of 90; its state is kept",
        True,
    )
    await steered.clock.advance(100_000.0)
    assert not holding.done()
    assert steered.calls.made == [(True, True)]
    await steered.wishes(Resumed)
    assert await holding == Change("resumed by the owner")
    assert not steered.still.is_wanted


async def test_what_is_asked_for_during_a_pause_is_answered_and_changes_nothing(steered: Steered) -> None:
    await steered.trains(7)
    await steered.wishes(Paused)
    steered.keeps(7)
    holding = await steered.holding()
    assert steered.announcer.phase.paused
    again, kept, plan = [await steered.wishes(kind) for kind in (Paused, CheckpointWanted, PlanWanted)]
    assert steered.answer(again).text == "the run is paused already, after step 7 of 90; its state is kept"
    assert steered.answer(kept).text.startswith("the state after step 7 is kept for good")
    assert steered.noted == [7]
    assert (steered.answer(plan).done, steered.answer(plan).text) == (
        False,
        "the run is paused: `resume` makes a plan anew",
    )
    assert not holding.done()
    holding.cancel()


async def test_a_coordinator_that_comes_back_to_a_pause_calls_no_plan_again(steered: Steered) -> None:
    await steered.trains(7)
    await steered.wishes(Paused)
    steered.keeps(7)
    (await steered.holding()).cancel()
    later = Steered(steered.folder)
    later.state.plan = plan_of("a", "b")
    later.calls.epoch = steered.calls.epoch
    later.keeps(7)
    assert later.still.is_wanted
    holding = await later.holding()
    assert later.calls.made == []
    assert later.announcer.phase.text == "paused by the owner after step 7 of 90; its state is kept"
    holding.cancel()


async def test_a_checkpoint_is_a_stop_after_which_the_same_layout_goes_on(steered: Steered) -> None:
    await steered.trains(7)
    number = await steered.wishes(CheckpointWanted)
    holding = await steered.holding()
    assert (steered.calls.made, holding.done()) == ([(True, True)], False)
    steered.keeps(7)
    change = await holding
    assert change is not None
    assert (change.gently, change.layout) == (True, steered.state.plan)
    assert steered.answer(number).text.startswith("the state after step 7 is kept for good")
    assert steered.noted == [7]
    assert not steered.still.is_wanted


async def test_a_run_that_is_to_end_is_over_once_its_last_step_is_kept(steered: Steered) -> None:
    await steered.trains(7)
    number = await steered.wishes(FinishWanted)
    holding = await steered.holding()
    assert not steered.still.is_over
    steered.keeps(7)
    assert await holding is None
    assert steered.still.is_over
    steered.still.answer_over("ended")
    assert steered.answer(number).text == "ended"
    later = Steered(steered.folder)
    assert later.still.is_over
    await later.wishes(Resumed)
    assert not later.still.is_over


async def test_a_paused_run_can_be_ended_without_another_plan(steered: Steered) -> None:
    await steered.trains(7)
    await steered.wishes(Paused)
    steered.keeps(7)
    holding = await steered.holding()
    await steered.wishes(FinishWanted)
    assert await holding is None
    assert not steered.still.is_over
    assert await steered.still.hold() is None
    assert steered.still.is_over
    assert steered.calls.made == [(True, True)]


async def test_a_state_that_a_lost_peer_has_not_handed_in_is_kept_under_another_plan(steered: Steered) -> None:
    await steered.trains(7)
    steered.keeps(5)
    number = await steered.wishes(Paused)
    for _ in range(MOST_ATTEMPTS):
        holding = await steered.holding()
        await steered.goodbye("b")
        await steered.clock.advance(TIMEOUTS.park + 1)
        change = await holding
        assert change is not None
        assert change.keeps
        assert not steered.is_answered(number)
        steered.calls.epoch = Epoch(called=9, in_force=9)
    holding = await steered.holding()
    await steered.clock.advance(TIMEOUTS.park + 1)
    assert steered.answer(number).text == (
        "paused after step 7 of 90; step 5 is kept here, later ones are with the nodes: keep those running"
    )
    steered.keeps(7)  # they come at last
    await settle()
    assert steered.announcer.phase.text == "paused by the owner after step 7 of 90; its state is kept"
    holding.cancel()


async def test_where_nodes_are_too_few_for_that_it_is_said_at_once_and_done_when_they_come(steered: Steered) -> None:
    await steered.trains(7)
    steered.keeps(5)
    number = await steered.wishes(Paused)
    steered.can_plan = False
    await steered.goodbye("b")
    holding = await steered.holding()
    await steered.clock.advance(TIMEOUTS.park + 1)
    assert "step 5 is kept here" in steered.answer(number).text
    assert not holding.done()
    steered.can_plan = True
    steered.state.notify()
    change = await holding
    assert change is not None
    assert change.keeps
    assert steered.still.is_wanted


async def test_a_share_that_comes_in_is_waited_for_however_long_it_takes(steered: Steered) -> None:
    await steered.trains(7)
    await steered.wishes(Paused)
    holding = await steered.holding()
    steered.is_receiving = True
    await steered.clock.advance(TIMEOUTS.checkpoint_share + 10)
    assert not holding.done()
    steered.keeps(7)
    await settle()
    assert steered.announcer.phase.paused
    holding.cancel()


async def test_who_resumes_before_the_stop_is_complete_is_not_kept_waiting(steered: Steered) -> None:
    await steered.trains(7)
    number = await steered.wishes(Paused)
    holding = await steered.holding()
    await steered.wishes(Resumed)
    change = await holding
    assert change is not None
    assert not change.keeps
    assert not steered.answer(number).done


async def test_before_the_first_step_nothing_is_waited_for(steered: Steered) -> None:
    number = await steered.wishes(Paused)
    holding = await steered.holding()
    assert steered.answer(number).text == "paused before the first step"
    assert steered.calls.made == []
    await steered.wishes(Resumed)
    assert await holding == Change("the first plan")


async def test_a_plan_that_has_not_begun_is_ended_at_once_where_nothing_is_lost_by_it(steered: Steered) -> None:
    await steered.trains(7)
    steered.keeps(7)
    await steered.report("b", "starting", plan_version=1)
    await steered.wishes(Paused)
    holding = await steered.holding()
    assert steered.calls.made == [(False, True)]
    assert steered.announcer.phase.paused
    holding.cancel()


async def test_a_plan_that_has_not_begun_begins_first_where_it_brings_a_state_to_keep(steered: Steered) -> None:
    await steered.trains(7)
    steered.keeps(5)
    await steered.report("b", "starting", plan_version=1)
    await steered.wishes(Paused)
    holding = await steered.holding()
    assert steered.calls.made == []
    await steered.report("b", "training", plan_version=1, step=7)
    await settle()
    assert steered.calls.made == [(True, True)]
    holding.cancel()


async def test_nothing_is_done_for_a_run_that_is_over_and_that_is_said(steered: Steered) -> None:
    numbers = [await steered.wishes(kind) for kind in (CheckpointWanted, PlanWanted, Paused)]
    assert steered.still.is_asked
    steered.still.answer_over("all 90 steps are done")
    assert not steered.still.is_asked
    assert {steered.answer(number).text for number in numbers} == {"the run is over: all 90 steps are done"}


async def test_a_checkpoint_of_a_run_whose_loss_is_not_finite_is_given_up_soon(steered: Steered) -> None:
    await steered.trains(7)
    steered.keeps(5)
    number = await steered.wishes(CheckpointWanted)
    holding = await steered.holding()
    await steered.diverges()
    await steered.clock.advance(TIMEOUTS.checkpoint_confirm + 2)
    assert holding.done()
    assert await holding is None  # whoever looks at the plan tells that training has diverged
    answer = steered.answer(number)
    assert not answer.done
    assert answer.text == (
        "the state after step 7 is not kept, as the loss of step 8 is not finite; that after step 5 is"
    )
    assert not steered.still.is_wanted


async def test_a_run_whose_loss_is_not_finite_can_be_paused_and_tried_again(steered: Steered) -> None:
    await steered.trains(7)
    steered.keeps(5)
    number = await steered.wishes(Paused)
    holding = await steered.holding()
    await steered.diverges()
    await steered.clock.advance(TIMEOUTS.checkpoint_confirm + 2)
    assert steered.answer(number).text == (
        "paused after step 7 of 90; the loss of step 8 is not finite; of the states, that after step 5 is the newest "
        "that is kept"
    )
    await steered.wishes(Resumed)
    assert await holding == Change("resumed by the owner")
    assert not steered.state.divergence.verdict


async def test_a_run_whose_loss_is_not_finite_can_be_ended_with_the_state_that_is_kept(steered: Steered) -> None:
    await steered.trains(7)
    steered.keeps(5)
    await steered.wishes(FinishWanted)
    holding = await steered.holding()
    await steered.diverges()
    await steered.clock.advance(TIMEOUTS.checkpoint_confirm + 2)
    assert await holding is None
    assert steered.still.is_over
    assert steered.rows.last == 5


async def test_a_wish_that_is_taken_back_is_waited_for_no_more(steered: Steered) -> None:
    await steered.trains(7)
    number = await steered.wishes(CheckpointWanted)
    holding = await steered.holding()
    await steered.wishes(Cancelled)
    change = await holding
    assert change is not None
    assert not change.keeps
    assert steered.answer(number).text == "not done: you have taken it back"
