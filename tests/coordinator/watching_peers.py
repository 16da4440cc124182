"""Peers that train, and who watches over their plan, under a clock of the test's own."""

import asyncio
from pathlib import Path

import pytest

from dtfm_coordinator.leader.comparison import SENDERS_TELL, Comparison
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.plan_watch import Change, PlanWatch
from dtfm_coordinator.links.link_degradation import SECONDS as LINK_SECONDS
from dtfm_coordinator.links.link_degradation import WARM_STEPS
from dtfm_coordinator.plan_change.ended_processes import EndedProcesses
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import Role
from dtfm_coordinator.records.event_log import PlanEvent
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.view.view import View
from tests.coordinator.peers import ME, Peers, plan_of
from tests.harness.manual_clock import ManualClock


class Led(Peers):
    """Peers that train, and who looks for a better plan, under a clock of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        super().__init__(folder, clock=self.clock)
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]
        self.watch = PlanWatch(self.state, self.context.planner, self.clock.now)
        self.layout_maker = LayoutMaker(self.context, self.state, self.announcer.say, None)
        driver = PlanChangeDriver(
            folder,
            Role(ME.peer_id, alone=True),
            self.state.members,
            self.state,
            self.context.control.publish,
            lambda text: self.announcer.say("waiting", text),
            is_genuine=lambda _: True,
            liveness=EndedProcesses(self.state.members),
        )
        self.events: list[PlanEvent] = []
        self.comparison = Comparison(
            self.state,
            self.watch,
            self.layout_maker,
            driver,
            self.rows,
            self.announcer.say,
            lambda: self.context.job.plan.horizon,
            lambda: self.events,
        )
        self._step = 0

    async def trains(self, *peers: str) -> None:
        """They train under a plan, on links that are known, and its first steps are over."""
        self.state.plan = plan_of(*peers)
        await self.join(*peers)
        await self.layout_maker.probe(self.ready())
        for _ in range(1 + WARM_STEPS):
            await self.steps()

    async def steps(self, seconds: float = 0.0, *, gbps: dict[str, float] | None = None, **busy: float) -> None:
        """So many seconds pass until the next step.

        Args:
            gbps: what frames to the second peer come at, by sender.
            busy: seconds of compute of peers; 1 of those that are not named.
        """
        assert self.state.plan is not None
        self.clock.skip(seconds)
        self._step += 1
        for number, peer in enumerate(self.state.plan.peers):
            await self.report(
                peer, "training", plan_version=1, step=self._step, busy_seconds=busy.get(peer, 1.0),
                received_gbps=(gbps or {}) if number == 1 else {},
            )  # fmt: skip

    async def becomes_slow(self) -> None:
        """So do frames from a to b."""
        await self.steps(LINK_SECONDS, gbps={"a": 0.1})

    async def fails(self, gbps: float = 0.1, sender: str = "a", receiver: str = "b") -> None:
        """Frames from one to the other are on their way, and go that slowly."""
        sent = {receiver: gbps} if gbps else {}
        await self.report(sender, "training", plan_version=1, step=self._step, sent_gbps=sent)

    def carries(self, ahead: float, back: float) -> None:
        """The link from a to b was measured at `ahead` Gbit/s, and back."""
        link = Link(round_trip_ms=20.0, sent_gbps=ahead, received_gbps=back, round=1 << 50)
        self.state.links.reported("a", LinkReport(links={"b": link}))

    def rates(self, view: View | None = None) -> tuple[float, ...]:
        """Gbit/s from a to b and back, as links are known, or in a view."""
        if view is None:
            return tuple(self.state.links.gbps(*pair) or 0.0 for pair in ("ab", "ba"))
        here, there = view.ids.index("a"), view.ids.index("b")
        return float(view.bandwidth_gbps[here, there]), float(view.bandwidth_gbps[there, here])

    async def passes(self, seconds: float) -> None:
        """So many seconds pass in which all is as it was."""
        self.clock.skip(seconds)
        await self.steps()

    async def change(self) -> Change:
        """What is found to be looked into."""
        assert self.state.plan is not None
        assert self.watch.wish(self.state.plan)
        return self.watch.look_into(self.state.plan)

    async def kept(self, change: Change) -> bool:
        """Whether the plan in force stays, once that is looked into."""
        assert self.state.plan is not None
        async with asyncio.timeout(30):
            looking = asyncio.create_task(self.comparison.better(self.state.plan, change))
            if self.watch.is_doubted() and not self.watch.failing():
                await self.waits(SENDERS_TELL)
            return await looking is None

    async def waits(self, seconds: float) -> None:
        """So many seconds pass within a step."""
        assert self.state.plan is not None
        for _ in range(int(seconds)):
            for peer in self.state.plan.peers:
                await self.report(peer, "training", plan_version=1, step=self._step)
            await self.clock.advance(1.0)


@pytest.fixture
def led(tmp_path: Path) -> Led:
    return Led(tmp_path)
