"""Peers around a coordinator that makes layouts for them, and measures their links before it does."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.links.link_degradation import Pair
from dtfm_protocol.control.messages import ProbeRound
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts
from tests.coordinator.peers import Peers, plan_of
from tests.harness.manual_clock import ManualClock

AB: Pair = ("a", "b")
AC = frozenset("ac")
AT_ONCE = replace(TIMEOUTS, settle=0.0, settle_in_run=0.0)


class Swarm(Peers):
    """Peers, and the coordinator's part that makes layouts for them. Nobody falls silent while the clock stands."""

    def __init__(
        self, folder: Path, fewest_nodes: int = 1, min_nodes: int | None = None, timeouts: Timeouts = AT_ONCE
    ) -> None:
        self.clock = ManualClock()
        super().__init__(folder, fewest_nodes, self.clock)
        self.first_rounds: list[ProbeRound] = []
        """Those before `trains`."""
        self.one = LayoutMaker(self.context, self.state, self.announcer.say, min_nodes, timeouts)

    async def layout(self) -> Plan:
        return await asyncio.wait_for(self.one.layout(), 30)

    async def probe(self, *anew: Pair) -> None:
        await asyncio.wait_for(self.one.probe(self.ready(), anew), 30)

    async def trains(self, *peers: str) -> Plan:
        """Those have been measured, and a plan for them is in force."""
        await self.join(*peers)
        await self.probe()
        self.state.plan = plan_of(*peers)
        self.first_rounds = self.rounds
        self.control.said.clear()
        return self.state.plan

    def suspects(self) -> frozenset[Pair]:
        return self.state.link_watch.suspects(self.state.links.gbps)

    @property
    def planned(self) -> list[str]:
        """For whom the planner was asked, time after time."""
        return ["".join(sorted(view.ids)) for view in self.planner.views]


def ids_of(plan: Plan) -> str:
    return "".join(sorted(plan.peers))


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    """One whose planner takes any view."""
    return Swarm(tmp_path)
