"""Newcomers are given their part of the state while the others really train, and their plan begins without fetching
any."""

import asyncio
import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.runner.ahead_fetch import AheadFetch
from dtfm_node.state.ahead_giving import AheadGiver
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.transfers import STATE, serve_state
from dtfm_protocol.control.messages import ProbeRound
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.transport.in_memory import MemoryDataPlane
from tests.node.engine_reference import LESS, alone, assert_same_training
from tests.node.engine_swarm import Peer, Result, Swarm, at_once, home, identical, job_of, one_thread, plan_of
from tests.node.test_ahead_giving import MUCH, Said

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow
LORA = {"method": "lora", "lora": {"target_modules": ("v_proj",)}, "learning_rate": 0.02}
LAST = 4
"""Step after which the plan changes."""


class Newcomer:
    """A peer that fetches ahead what a layout gives it."""

    def __init__(self, swarm: Swarm, home: Path, me: str, layout: Plan) -> None:
        (home / "disks").mkdir(exist_ok=True)
        self.said, self.holdings = Said(), Inventory(Snapshots(home / "disks" / f"new-{me}"), at_once)
        job = next(iter(swarm.peers.values())).job
        self.fetch = AheadFetch(
            job, MemoryDataPlane(swarm.network, me), self.holdings, self.said,  # type: ignore[arg-type]
            lambda: swarm.plan, lambda: MUCH, self._serve, self._fetch_files,
        )  # fmt: skip
        self.comings: asyncio.Queue[ProbeRound] = asyncio.Queue()
        self.comings.put_nowait(ProbeRound(id=1, addresses={}, coming=layout))

    async def _serve(self, layout: Plan) -> None:
        """It has nothing to give."""

    async def _fetch_files(self, layout: Plan, plan: Plan, step: int) -> None:
        """All have the corpus."""


class Gate:
    """Where a peer waits before its last step until newcomers have what it is now: then one step more leads on."""

    def __init__(self, peer: Peer, newcomers: Collection[Newcomer]) -> None:
        self.reader, self._newcomers = peer._corpus, newcomers

    async def ensure(self, plan: Plan, me: str, step: int) -> None:
        """Wait, before the last step."""
        if step == LAST:
            for one in self._newcomers:
                await one.said.is_ahead.wait()


async def give_ahead(peer: Peer, layout: Plan) -> None:
    """Have a peer that trains give to the peers of a layout."""
    giver = AheadGiver(peer.holdings, UplinkPacer(), peer.compute, lambda: MUCH)
    await giver.serve(layout)
    await peer.plane.serve(STATE, lambda stream: serve_state(stream, peer.holdings, giver.give))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [("1x2", "2x2", {}), ("2x1", "1x4", {}), ("1x2", "2x2", LORA), ("1x2", "2x2", LESS["both"])],
)
async def test_a_plan_with_newcomers_begins_without_fetching_any_state(
    home: Path, before: str, after: str, keys: dict[str, Any], tied: bool
) -> None:
    job = job_of(home, tied=tied, **keys)
    former, layout = Swarm(home, job, plan_of(before)), plan_of(after, version=0)
    newcomers = {me: Newcomer(former, home, me, layout) for me in layout.peers if me not in former.peers}
    first = next(iter(former.peers.values()))
    first.source = Gate(first, newcomers.values())  # type: ignore[assignment]
    async with asyncio.timeout(60):
        training = asyncio.create_task(former.run(last=LAST))
        while not first.rows:  # noqa: ASYNC110 - the test's own tasks bring it about
            await asyncio.sleep(0.001)
        for peer in former.peers.values():
            await give_ahead(peer, layout)
        fetching = [asyncio.create_task(one.fetch.run(one.comings)) for one in newcomers.values()]
        start = await training
        held = tuple(
            Source(peer=me, layers=(former.plan.stages[former.plan.stage_of(me) or 0],)) for me in former.peers
        )
        second = plan_of(after, version=2, resume=Resume(mark=Mark(step=LAST, plan=1), sources=held))
        swarm = Swarm(home, job, second, former.network, former)
        for me, one in newcomers.items():
            swarm.peers[me].holdings = one.holdings
        rest = await swarm.run()
    for task in fetching:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert {me: swarm.peers[me].fetched.bytes for me in newcomers} == dict.fromkeys(newcomers, 0)
    for me in newcomers:
        ours = swarm.peers[me].states[LAST]
        assert identical(ours, {key: start.state[key] for key in ours})
    tolerance = 2e-3 if keys is LESS["both"] else 1e-5
    assert_same_training(Result(start.rows + rest.rows, rest.state), alone(home, tied, **keys), tolerance)
