"""What the doctor finds out about the other peers before this machine has joined, and as a member."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from dtfm_node.doctor.checks import first_peers
from dtfm_node.doctor.checks.first_peers import FirstPeersObservation
from dtfm_node.doctor.findings import Verdict
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.discovery.registry import Registry
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.open_planes import open_planes
from dtfm_protocol.transport.dial_rule import dial_rule
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.view.view import LayerSeconds
from tests.harness.membership import OWNER, SWARM, coordinator_of, member_of

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

PATIENCE = 60.0
TOKEN = EntryToken.issue(OWNER, SWARM, 1, int(time.time()) + 3600)
PROFILE = Profile(
    device="cpu",
    flops={"fp32": 1e11},
    layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
    memory_bytes=1e9,
    addresses=("/ip4/192.0.2.1/tcp/1",),
    version="0.1.0",
)


@contextlib.asynccontextmanager
async def invited() -> AsyncIterator[Invite]:
    """The invite of a swarm whose coordinator runs, and has a profile of itself in the DHT."""
    address = "127.0.0.1:9"
    draft = Invite(swarm=SWARM, coordinator=OWNER.peer_id, dht=("/",), entrance=address, token=TOKEN)
    registry = Registry(SWARM, Post(SWARM, OWNER))
    admission, dials = coordinator_of(OWNER), dial_rule([], ["127.0.0.1"])
    opening = open_planes(OWNER, admission, draft.service, registry, listen="127.0.0.1", dials=dials, relay=True)
    async with asyncio.timeout(PATIENCE), opening as planes:
        assert await registry.publish(planes.discovery, PROFILE)
        yield draft.model_copy(update={"dht": await planes.data.addresses()})


async def found(invite: Invite, identity: Identity, admission: Admission) -> FirstPeersObservation:
    seen = FirstPeersObservation(is_member=bool(admission.certificate))
    seen.doors = await first_peers.connect_to_all(invite)
    async with LibP2PDataPlane.running(identity, admission, invite.service, listen="127.0.0.1") as plane:
        await first_peers.enter(seen, plane, invite.coordinators)
        await first_peers.read_dht(seen, plane, invite, identity, admission)
    return seen


async def test_a_stranger_learns_whether_the_doors_are_open_and_how_it_is_seen_and_no_more() -> None:
    async with invited() as invite:
        seen = await found(invite, Identity.generate(), Admission(SWARM, invite.coordinators, b""))
    assert seen.connected == seen.relays == [OWNER.peer_id]
    assert [one.ip for one in seen.observations] == ["127.0.0.1"]
    assert (seen.clocks, seen.members) == ({}, None)
    said = first_peers.judge(seen, invite.coordinators)
    assert {one.verdict for one in said} == {Verdict.good}
    assert "members alone" in said[-1].seen


async def test_a_member_learns_the_time_and_who_is_there_too() -> None:
    async with invited() as invite:
        seen = await found(invite, *member_of(OWNER))
    assert seen.connected == seen.relays == [OWNER.peer_id]
    assert abs(seen.clocks[OWNER.peer_id].ahead) < 1.0
    assert seen.members is not None
    assert [member.peer for member in seen.members] == [OWNER.peer_id]
    assert {one.verdict for one in first_peers.judge(seen, invite.coordinators)} == {Verdict.good}
