"""Lookups of profiles: while there is one to find, and no longer."""

import asyncio
from pathlib import Path

from dtfm_coordinator.membership.known_peers import KnownPeers
from dtfm_coordinator.swarm.profile_lookup import ProfileLookup
from tests.coordinator.peers import Peers
from tests.harness.manual_clock import ManualClock


async def test_a_profile_is_looked_for_until_its_peers_present_one_is_found(tmp_path: Path) -> None:
    """Lookups cost every peer's uplink: there are none that have nothing to find."""
    peers = Peers(tmp_path)
    await peers.join("a")
    clock, known = ManualClock(), KnownPeers(tmp_path)
    lookup = ProfileLookup(peers.state.members, peers.context.discovery, peers.context.registry, known, clock)

    async def look(times: int) -> None:
        for _ in range(times):
            await lookup.look(1.0)
            peers.state.notify()
            await clock.advance(1.0)

    await look(100)
    assert peers.records.lookups == 0
    await peers.hello("a", session="two")  # started again, elsewhere perhaps: what is found first is of before
    await look(100)
    assert 1 < peers.records.lookups < 20
    new = peers.records.listed["a"].model_copy(update={"device": "cuda:0", "session": "two"})
    peers.records.listed = {"a": new}
    member = peers.state.members.get("a")
    assert member is not None
    waiting = asyncio.create_task(peers.state.wait(lambda: member.profile == new))
    await look(100)
    assert await asyncio.wait_for(waiting, 30)
    before = peers.records.lookups
    await look(100)
    assert peers.records.lookups == before
    await peers.hello("b")
    await look(100)
    assert peers.records.lookups > before
