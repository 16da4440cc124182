"""Discovery: signed records, alike on the real DHT and on its in-memory twin."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dtfm_protocol.discovery.dht import HivemindDiscovery
from dtfm_protocol.discovery.records import Entry, Link, LinkReport, Profile
from dtfm_protocol.discovery.registry import LATE_SECONDS, Discovery, Registry
from dtfm_protocol.errors import Cause, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.schema import Schema
from dtfm_protocol.transport.in_memory import MemoryDiscovery, MemoryNetwork
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.view.view import LayerSeconds
from tests.harness.membership import OWNER, SWARM, member_of

PATIENCE = 30.0
UNTIL = 1e10


def profile(device: str = "cpu") -> Profile:
    return Profile(
        device=device,
        flops={"fp32": 1e11},
        layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
        memory_bytes=1e9,
        addresses=("/ip4/192.0.2.1/tcp/1",),
        version="0.1.0",
    )


def links(*peers: str) -> LinkReport:
    return LinkReport(links={peer: Link(round_trip_ms=2.0, sent_gbps=0.5, received_gbps=1.0) for peer in peers})


@dataclass
class Member:
    """One peer: its key, and its way to the records."""

    identity: Identity
    registry: Registry
    discovery: Discovery

    @property
    def peer(self) -> str:
        return self.identity.peer_id

    def post(self, swarm: str = SWARM) -> Post:
        return Post(swarm, self.identity)


def member(identity: Identity, discovery: Discovery, registry: Registry | None = None) -> Member:
    return Member(identity, registry or Registry(SWARM, Post(SWARM, identity)), discovery)


@contextlib.asynccontextmanager
async def on_dht() -> AsyncIterator[tuple[Member, Member]]:
    """Two members on a real DHT on 127.0.0.1."""
    async with joined(Identity.generate()) as (one, doors), joined(Identity.generate(), doors) as (other, _):
        yield one, other


@contextlib.asynccontextmanager
async def joined(
    identity: Identity,
    bootstrap: tuple[str, ...] = (),
    known_peers: tuple[str, ...] = (),
    admission: Admission | None = None,
) -> AsyncIterator[tuple[Member, tuple[str, ...]]]:
    """A member on a real DHT on 127.0.0.1, and where it is reached."""
    registry = Registry(SWARM, Post(SWARM, identity))
    admission = admission or member_of(OWNER, identity=identity)[1]
    async with (
        LibP2PDataPlane.running(identity, admission, str, listen="127.0.0.1", bootstrap=bootstrap) as plane,
        HivemindDiscovery.running(plane, identity, admission, registry, bootstrap, known_peers) as discovery,
    ):
        yield member(identity, discovery, registry), await plane.addresses()


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[tuple[Member, Member]]:
    """Two members on the in-memory twin."""
    network = MemoryNetwork()
    a, b = Identity.generate(), Identity.generate()
    yield member(a, MemoryDiscovery(network, a.peer_id)), member(b, MemoryDiscovery(network, b.peer_id))


@pytest.fixture(params=[in_memory, on_dht], ids=["memory", "dht"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Member, Member]]:
    make: Callable[[], contextlib.AbstractAsyncContextManager[tuple[Member, Member]]] = request.param
    async with make() as members:
        yield members


@pytest.mark.process
async def test_records_are_found_by_all_replaced_by_their_writer_and_dropped_if_forged(
    pair: tuple[Member, Member],
) -> None:
    """One story, for the DHT is slow to start."""
    async with asyncio.timeout(PATIENCE):
        a, b = pair
        assert await a.registry.profiles(a.discovery) == {}
        assert await a.registry.links(a.discovery, b.peer) is None

        # every peer has an entry of its own, and all see all
        assert await a.registry.publish(a.discovery, profile("of a"))
        assert await b.registry.publish(b.discovery, profile("of b"))
        wanted = {a.peer: profile("of a"), b.peer: profile("of b")}
        assert await a.registry.profiles(a.discovery) == wanted
        assert await b.registry.profiles(b.discovery) == wanted
        assert await a.registry.profiles(a.discovery, [b.peer]) == {b.peer: profile("of b")}

        # the newest one counts, at once and everywhere, however soon it follows
        for text in ("of a, soon", "of a, sooner", "of a, again"):
            assert await a.registry.publish(a.discovery, profile(text))
        for reader in (a, b):
            assert (await reader.registry.profiles(reader.discovery))[a.peer] == profile("of a, again")

        # links are read by whose they are
        assert await a.registry.publish(a.discovery, links(b.peer))
        assert await b.registry.links(b.discovery, a.peer) == links(b.peer)
        assert await a.registry.links(a.discovery, b.peer) is None
        assert a.registry.dropped.total() == b.registry.dropped.total() == 0

        # b stores under its own name what a has signed, and what it signed for another swarm
        key = b.registry.key("profile", b.peer)
        for forged in (
            a.post().seal("record", Entry(record=profile("forged"), until=UNTIL)),
            b.post("f" * 16).seal("record", Entry(record=profile("foreign"), until=UNTIL)),
            b.post().seal("presence", Entry(record=profile("another kind"), until=UNTIL)),
            b"no envelope",
        ):
            await b.discovery.publish(key, forged, 60.0)
            for reader in (a, b):
                found = await reader.registry.profiles(reader.discovery)
                assert found.get(b.peer) in (None, profile("of b"))
                assert found[a.peer] == profile("of a, again")
        assert a.registry.dropped.total() + b.registry.dropped.total() >= 4

        # a good one mends it
        assert await b.registry.publish(b.discovery, profile("of b, again"))
        assert (await a.registry.profiles(a.discovery))[b.peer] == profile("of b, again")


def test_a_registry_counts_what_it_drops_by_cause() -> None:
    a, b = Identity.generate(), Identity.generate()
    registry = Registry(SWARM, Post(SWARM, a))
    good = Post(SWARM, b).seal("record", Entry(record=profile(), until=UNTIL))
    assert registry.check(b.peer_id, good) == profile()
    assert registry.dropped == {}
    for data in (good, good, b"", good[:-5]):
        assert registry.check(a.peer_id, data) is None
    changed = bytearray(good)
    changed[good.index(b"cpu")] ^= 1
    assert registry.check(b.peer_id, bytes(changed)) is None
    assert registry.dropped == {
        Cause.AUTHOR: 2,
        Cause.FORM: 2,
        Cause.SIGNATURE: 1,
    }


def test_of_a_peers_records_the_newest_counts_whatever_is_stored_again() -> None:
    b = Identity.generate()
    registry, writer = Registry(SWARM, Post(SWARM, Identity.generate())), Post(SWARM, b)
    old, new = (writer.seal("record", Entry(record=profile(name), until=UNTIL)) for name in ("old", "new"))
    measured = writer.seal("record", Entry(record=links("x"), until=UNTIL))
    assert registry.check(b.peer_id, old) == profile("old")
    assert [registry.check(b.peer_id, data) for data in (new, measured, new)] == [
        profile("new"),
        links("x"),
        profile("new"),
    ]
    assert registry.check(b.peer_id, old) is None
    assert registry.dropped == {Cause.STALE: 1}


def test_a_record_is_stored_no_longer_than_its_writer_has_said() -> None:
    """Else who replays it could keep it there for ever."""
    b = Identity.generate()
    registry = Registry(SWARM, Post(SWARM, Identity.generate()))
    data = Post(SWARM, b).seal("record", Entry(record=profile(), until=1000.0))
    assert registry.check(b.peer_id, data, 1000.0 + LATE_SECONDS) == profile()
    assert registry.check(b.peer_id, data, 1001.0 + LATE_SECONDS) is None


async def test_links_in_a_profiles_place_are_no_profile() -> None:
    async with in_memory() as (a, b):
        place = b.registry.key("profile", b.peer)
        await b.discovery.publish(place, b.post().seal("record", Entry(record=links(a.peer), until=UNTIL)), 60.0)
        assert await a.registry.profiles(a.discovery) == {}
        await b.discovery.publish(
            f"{SWARM}/links/{b.peer}", b.post().seal("record", Entry(record=profile(), until=UNTIL)), 60.0
        )
        assert await a.registry.links(a.discovery, b.peer) is None


@pytest.mark.parametrize(
    "change",
    [
        {"flops": {"fp32": -1.0}},
        {"flops": {"fp32": "fast"}},
        {"memory_bytes": 0},
        {"device": "x" * 129},
        {"addresses": ["/ip4/192.0.2.1"] * 17},
        {"layer_seconds": {"forward": 0.0, "backward": 1.0}},
        {"kind": "other"},
    ],
)
def test_a_well_signed_record_that_does_not_fit_is_dropped(change: dict[str, object]) -> None:
    b = Identity.generate()
    registry = Registry(SWARM, Post(SWARM, Identity.generate()))
    data = Post(SWARM, b).seal("record", Anything(record=profile().model_dump(mode="json") | change, until=UNTIL))
    assert registry.check(b.peer_id, data) is None
    assert registry.dropped.total() == 1


class Anything(Schema):
    """An entry with whatever in it."""

    record: dict[str, Any]
    until: float


@pytest.mark.process
async def test_a_dht_that_nobody_answers_for_is_a_user_error() -> None:
    identity, admission = member_of(OWNER)
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.generate().peer_id}"
    async with (
        asyncio.timeout(PATIENCE),
        LibP2PDataPlane.running(identity, admission, str, listen="127.0.0.1") as plane,
    ):
        registry = Registry(SWARM, Post(SWARM, identity))
        with pytest.raises(UserError, match=r"no DHT peer answers at .*is the coordinator running") as caught:
            async with HivemindDiscovery.running(plane, identity, admission, registry, (nobody,), patience=2.0):
                pass
        assert "\n" not in str(caught.value)


@pytest.mark.process
async def test_a_dht_whose_door_is_too_busy_at_first_is_entered_later() -> None:
    """The door's daemon is there, as a coordinator's is on a busy machine, and answers calls of the DHT 3 s later."""
    early, late = member_of(OWNER), member_of(OWNER)
    async with (
        asyncio.timeout(PATIENCE),
        LibP2PDataPlane.running(*late, str, listen="127.0.0.1") as door,
        LibP2PDataPlane.running(*early, str, listen="127.0.0.1", bootstrap=await door.addresses()) as plane,
    ):
        there = contextlib.AsyncExitStack()

        async def open_door() -> None:
            await asyncio.sleep(3.0)
            registry = Registry(SWARM, Post(SWARM, late[0]))
            await there.enter_async_context(HivemindDiscovery.running(door, *late, registry))

        registry = Registry(SWARM, Post(SWARM, early[0]))
        entering = HivemindDiscovery.running(plane, *early, registry, await door.addresses())
        async with there, asyncio.TaskGroup() as tasks:
            tasks.create_task(open_door())
            async with entering as discovery:
                assert await registry.publish(discovery, profile())


@pytest.mark.process
async def test_who_has_struck_all_others_off_its_list_meets_them_again_and_is_seen() -> None:
    async with on_dht() as (one, other):
        for member_, lost in ((one, other), (other, one)):
            assert isinstance(member_.discovery, HivemindDiscovery)
            table = member_.discovery._node.protocol.routing_table
            for node in list(table.uid_to_peer_id):
                del table[node]
            assert not table.peer_id_to_uid, lost
        assert await other.registry.publish(other.discovery, profile())
        async with asyncio.timeout(PATIENCE):
            while other.peer not in await one.registry.profiles(one.discovery):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest.mark.process
async def test_who_opened_the_network_finds_it_again_by_those_who_are_still_in_it() -> None:
    """None of whom publishes anything meanwhile, and one of whom is gone."""
    first = Identity.generate()
    gone = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.generate().peer_id}"
    async with asyncio.timeout(PATIENCE), contextlib.AsyncExitStack() as stack:
        async with joined(first) as (_, doors):
            other, there = await stack.enter_async_context(joined(Identity.generate(), doors))
            assert await other.registry.publish(other.discovery, profile())
        async with joined(first) as (alone, _):
            assert await alone.registry.profiles(alone.discovery) == {}
        async with joined(first, (), (gone, *there)) as (back, _):
            assert await back.registry.profiles(back.discovery) == {other.peer: profile()}


@pytest.mark.process
@pytest.mark.parametrize("address", ["nonsense", "/ip4/127.0.0.1/tcp/9/p2p/", "/ip4/127.0.0.1/tcp/99999/p2p/ab", ""])
async def test_acquaintances_that_make_no_sense_stop_nobody(address: str) -> None:
    async with asyncio.timeout(PATIENCE), joined(Identity.generate(), (), (address,)) as (alone, _):
        assert await alone.registry.profiles(alone.discovery) == {}


@pytest.mark.process
async def test_who_finds_none_of_its_acquaintances_starts_alone() -> None:
    gone = f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.generate().peer_id}"
    async with asyncio.timeout(PATIENCE), joined(Identity.generate(), (), (gone,)) as (alone, _):
        assert await alone.registry.profiles(alone.discovery) == {}
