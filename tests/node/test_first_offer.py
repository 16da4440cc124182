"""Of several peers that are asked for a file the first that offers it is taken, and nobody is waited for long."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import pytest

from dtfm_node.runner.first_offer import PAUSE_SECONDS, first_offer
from dtfm_protocol.checkpoint.transfers import SHARDS, ShardOffer, ask_for_shard, serve_shards
from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream, StreamClosed

DATA = b"tokens" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


class Peers:
    """Peers with something to offer, or nothing; who is asked for, and whose offer was declined."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.declined: list[str] = []

    def one(
        self, name: str, *, has: bool = True, when: asyncio.Event | None = None
    ) -> Callable[[], Awaitable[ShardOffer | None]]:
        async def ask() -> ShardOffer | None:
            self.asked.append(name)
            if when is not None:
                await when.wait()
            return Offer(self, name) if has else None

        return ask


class Offer(ShardOffer):
    """One that notes that it was declined."""

    def __init__(self, peers: Peers, name: str) -> None:
        self.peer, self._peers = name, peers

    async def decline(self) -> None:
        self._peers.declined.append(self.peer)


async def first(*asks: Callable[[], Awaitable[ShardOffer | None]], pause: float = 60.0) -> str | None:
    offer = await asyncio.wait_for(first_offer(asks, pause), 30)
    return None if offer is None else offer.peer


async def test_the_next_is_asked_as_soon_as_one_has_nothing_and_no_other_than_that() -> None:
    peers = Peers()
    assert await first(peers.one("a", has=False), peers.one("b"), peers.one("c")) == "b"
    assert peers.asked == ["a", "b"]
    assert await first(peers.one("a", has=False)) is None
    assert await first() is None


async def test_who_does_not_answer_is_not_waited_for() -> None:
    peers, never = Peers(), asyncio.Event()
    assert await first(peers.one("deaf", when=never), peers.one("mute", when=never), peers.one("c"), pause=0.01) == "c"
    assert peers.asked == ["deaf", "mute", "c"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_of_two_that_offer_it_at_the_same_time_one_is_declined() -> None:
    peers, now = Peers(), asyncio.Event()
    waiting = asyncio.create_task(first(peers.one("a", when=now), peers.one("b", when=now), pause=0.01))
    while len(peers.asked) < 2:  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(0.001)
    now.set()
    taken = await waiting
    assert {taken, *peers.declined} == {"a", "b"}
    assert len(peers.declined) == 1


async def test_who_stops_waiting_leaves_nothing_behind() -> None:
    peers = Peers()
    waiting = asyncio.create_task(first_offer([peers.one("a", when=asyncio.Event())]))
    while not peers.asked:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert 0.1 <= PAUSE_SECONDS <= 2.0


@pytest.mark.parametrize("data", [DATA, DATA[::-1]])
async def test_what_comes_is_what_was_asked_for_or_refused(data: bytes) -> None:
    network = MemoryNetwork()
    await MemoryDataPlane(network, "b").serve(SHARDS, lambda stream: serve_shards(stream, lambda _: data))
    offer = await ask_for_shard(MemoryDataPlane(network, "a"), "b", SHA256, len(DATA))
    assert offer is not None
    assert offer.peer == "b"
    if data == DATA:
        assert await offer.take(30) == DATA
    else:
        with pytest.raises(Refused, match="sent a shard with another hash"):
            await offer.take(30)


async def test_who_is_declined_sends_no_more() -> None:
    network, ended = MemoryNetwork(), asyncio.Event()

    async def serve(stream: Stream) -> None:
        try:
            await serve_shards(stream, lambda _: bytes(1 << 24))
        except StreamClosed:
            ended.set()
            raise

    await MemoryDataPlane(network, "b").serve(SHARDS, serve)
    offer = await ask_for_shard(MemoryDataPlane(network, "a"), "b", SHA256, 1 << 24)
    assert offer is not None
    await offer.decline()
    await asyncio.wait_for(ended.wait(), 30)
