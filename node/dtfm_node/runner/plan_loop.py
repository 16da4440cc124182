"""Loop over plans until the job is done: hears coordinators, has the `Follower` decide, and does what it asks.

What this node has promised is on its disk before it says so; while the disk has no room for that, nothing goes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dtfm_node.control.inbox import Inbox
from dtfm_node.control.reporter import Reporter
from dtfm_node.runner.follower import (
    AnswerCall,
    BeginPlan,
    DeclinePlan,
    DropFormer,
    EndPlan,
    Finish,
    Follower,
    FollowerAction,
    FollowerEvent,
    JobOver,
    LeaveAsked,
    NoRoom,
    Pause,
    PauseAsked,
    PauseOver,
    PromiseWritten,
    ServingEnded,
    StopServing,
    TakePlan,
)
from dtfm_node.runner.plan_worker import PlanWorker
from dtfm_node.runner.promise_store import PromiseStore
from dtfm_node.state.checkpointer import Checkpointer
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.timeouts import TIMEOUTS


@dataclass(frozen=True)
class _Pause:
    """Pause that was asked for: why, and how, as in `PlanLoop.pause`."""

    why: str
    at_once: bool
    saved: bool


class PlanLoop:
    """Life of a node under one plan after the other: the shell around a `Follower`."""

    def __init__(
        self,
        inbox: Inbox,
        worker: PlanWorker,
        promise_store: PromiseStore,
        holdings: Inventory,
        checkpointer: Checkpointer,
        reporter: Reporter,
        retry_seconds: float = TIMEOUTS.disk_retry,
    ) -> None:
        """Nothing happens before `follow`.

        Args:
            retry_seconds: see `Timeouts.disk_retry`.
        """
        self._retry_seconds = retry_seconds
        self._inbox, self._worker, self._promise_store = inbox, worker, promise_store
        self._holdings, self._checkpointer, self._reporter = holdings, checkpointer, reporter
        self._follower = Follower.restarted(promise_store.pledge)
        self._plan: Plan | None = None
        """Plan that the follower has heard of last."""
        self._leaving = self._finished = False
        self._pause: _Pause | None = None
        """Pause that was asked for; None: none."""
        self.is_paused = False
        """Whether this node stands still: it computes nothing, and holds nothing in memory."""

    async def follow(self) -> None:
        """Serve each plan from when it is in force until it is over; return when the job is done, or this node may go.

        Raises:
            UserError: the swarm has failed.
        """
        self._reporter.remember(self._holdings.snapshots.rows())
        self._promise_store.say_standing()
        self._reporter.hurry()
        try:
            while not self._finished:
                self._inbox.changed.clear()
                await self._look()
                if not self._finished:
                    await self._wait()
        finally:
            await self._worker.stop()
        self._holdings.drop()
        self._reporter.say("finished", self._inbox.last_words)

    def leave(self) -> None:
        """Have `follow` return as soon as the others can do without this node's state."""
        self._leaving = True
        self._reporter.note(leaving=True)
        self._reporter.hurry()
        self._inbox.changed.set()

    def pause(self, why: str, *, at_once: bool = False, saved: bool = True) -> None:
        """Have this node stand still as soon as others can do without it; it stays a member.

        Args:
            why: in words for people.
            at_once: whether to wait for nobody: others then lose what it alone holds in memory, as if it had died.
            saved: whether a state that others may lack is written to this node's disk before it is let go of.
        """
        self._pause = _Pause(why, at_once, saved)
        self._reporter.note(leaving=True)
        if self.is_paused:
            self._reporter.pause(why)
        self._reporter.hurry()
        self._inbox.changed.set()

    @property
    def works(self) -> bool:
        """Whether this node serves a plan, or is about to end that."""
        return self._follower.work != "none"

    def go_on(self) -> None:
        """Have this node take part again after a pause; a pause that it has not come to yet is called off."""
        self._pause = None
        self._reporter.note(leaving=self._leaving)
        self._reporter.hurry()
        self._inbox.changed.set()

    async def save(self) -> None:
        """Write what this node holds to its disk, for when it is started again."""
        live = self._holdings.live
        if live is not None and live.mark is not None:
            await self._checkpointer.save(live, self._reporter.unconfirmed())

    async def _look(self) -> None:
        """Tell the follower all that is new, and do what it asks for."""
        if self._inbox.is_over:
            await self._take(JobOver())
            return
        self._plan = self._inbox.plan
        await self._take(self._inbox.heard)
        self._promise_store.heard_call()
        holds, settled = self._holdings.live is not None, self._checkpointer.is_idle
        if self._leaving:
            await self._take(LeaveAsked(holds=holds, settled=settled))
        if self._worker.has_ended():
            await self._take(ServingEnded())
        pause = self._pause
        if pause is None and self._follower.pausing is not None:
            self.is_paused = False
            self._reporter.end_pause()
            await self._take(PauseOver())
        elif pause is not None and not self.is_paused:
            await self._take(PauseAsked(holds=holds, settled=settled, at_once=pause.at_once))

    async def _wait(self) -> None:
        """Wait until something new is said, the work under the plan has ended, or, where this node wants to leave or to
        pause, nothing is left to write and to hand in."""
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(self._inbox.changed.wait())}
        if (self._leaving or self._pause is not None) and not self._checkpointer.is_idle:
            waits.add(asyncio.create_task(self._checkpointer.settled()))
        try:
            await asyncio.wait({*waits, *self._worker.tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def _take(self, event: FollowerEvent) -> None:
        """Do what the follower asks for after `event`, and after what comes of that."""
        events = deque([event])
        while events:
            self._follower, actions = self._follower.on(events.popleft())
            for action in actions:
                outcome = await self._carry_out(action)
                if outcome is not None:
                    events.append(outcome)

    async def _carry_out(self, action: FollowerAction) -> FollowerEvent | None:
        """Carry out one action; return the event of what came of it, where the follower must know."""
        match action:
            case EndPlan(kept):
                self._worker.end(kept=kept)
            case StopServing():
                await self._worker.stop()
                return ServingEnded()
            case AnswerCall(pledge):
                return await self._write(partial(self._promise_store.promise, pledge), "after-promise")
            case TakePlan(pledge):
                return await self._write(partial(self._promise_store.take, self._heard_plan, pledge), "after-accept")
            case BeginPlan():
                self._worker.begin(self._heard_plan)
            case DeclinePlan(why):
                version = self._heard_plan.version
                text = f"{why}: not part of plan {version} any more"
                self._reporter.say("stalled", text, plan_version=version)
            case DropFormer():
                self._holdings.drop()
                self._promise_store.say_standing()
            case Pause():
                await self._stand_still()
            case Finish():
                self._finished = True
        return None

    async def _stand_still(self) -> None:
        assert self._pause is not None, "nobody asked for a pause"
        if self._pause.at_once and self._pause.saved:
            await self.save()
        self._holdings.drop()
        await self._worker.release_memory()
        self._promise_store.say_standing()
        self.is_paused = True
        self._reporter.pause(self._pause.why)

    @property
    def _heard_plan(self) -> Plan:
        assert self._plan is not None, "the follower asks for a plan that it has not heard of"
        return self._plan

    async def _write(self, write: Callable[[], None], fault: str) -> FollowerEvent:
        """Write a promise, and report it at once; where there is no room for it, say so, and wait a little."""
        try:
            write()
        except UserError as error:
            self._reporter.say("stalled", str(error)[:400])
            await asyncio.sleep(self._retry_seconds)
            self._inbox.changed.set()
            return NoRoom()
        point(fault)
        self._reporter.hurry()
        return PromiseWritten()
