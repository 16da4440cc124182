"""Whoever offers a file and gives it slowly, or not at all, holds its reader up for a moment only."""

import asyncio
import hashlib

import pytest

from dtfm_node.runner.first_given import AT_ONCE, FirstGiven
from dtfm_protocol.checkpoint.transfers import SHARDS, TransferReply, WantShard
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream, StreamClosed, read_message, write_message

DATA = b"tokens" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


class Givers:
    """Peers that have the file, and give all of it, or the half until they are told to go on."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.asked: list[str] = []
        self.let_go: list[str] = []
        """Whose stream the reader closed before all was given."""

    async def one(
        self, name: str, *, has: bool = True, before: asyncio.Event | None = None, data: bytes = DATA
    ) -> asyncio.Event:
        """Have a peer give at once, or once the event is set that is returned; `before` is set as it is asked."""
        goes_on = asyncio.Event()

        async def give(stream: Stream) -> None:
            self.asked.append(name)
            await read_message(stream, WantShard)
            await write_message(stream, TransferReply(size=len(data) if has else None))
            if not has:
                return
            if before is None:
                await stream.write(data)
                return
            await stream.write(data[: len(data) // 2])
            before.set()
            closed = asyncio.ensure_future(stream.read(1))
            going = asyncio.ensure_future(goes_on.wait())
            await asyncio.wait([closed, going], return_when=asyncio.FIRST_COMPLETED)
            going.cancel()
            if closed.done():
                assert isinstance(closed.exception(), StreamClosed)
                self.let_go.append(name)
                return
            closed.cancel()
            await stream.write(data[len(data) // 2 :])

        await MemoryDataPlane(self.network, name).serve(SHARDS, give)
        return goes_on

    def fetch(self, *sources: str, long: float = 0.02, patience: float = 60.0) -> FirstGiven:
        plane = MemoryDataPlane(self.network, "me")
        return FirstGiven(plane, SHA256, len(DATA), sources, pause=60.0, piece_seconds=patience, long=long)


@pytest.fixture
def givers() -> Givers:
    return Givers()


async def taken(fetch: FirstGiven) -> bytes | None:
    return await asyncio.wait_for(fetch.take(), 30)


async def test_beside_one_that_takes_long_the_next_one_gives_it_and_the_first_is_let_go(givers: Givers) -> None:
    await givers.one("slow", before=asyncio.Event())
    await givers.one("quick")
    fetch = givers.fetch("slow", "quick")
    assert await taken(fetch) == DATA
    assert givers.asked == ["slow", "quick"]
    assert fetch.late == {"slow"}
    await asyncio.sleep(0)
    assert givers.let_go == ["slow"]


async def test_one_that_is_quick_is_alone(givers: Givers) -> None:
    for peer in ("a", "b"):
        await givers.one(peer)
    fetch = givers.fetch("a", "b", long=60.0)
    assert await taken(fetch) == DATA
    assert givers.asked == ["a"]
    assert not fetch.late


async def test_one_that_was_given_company_and_is_first_all_the_same_puts_nobody_in_the_wrong(givers: Givers) -> None:
    second = asyncio.Event()
    goes_on = await givers.one("first", before=asyncio.Event())
    await givers.one("second", before=second)
    fetch = givers.fetch("first", "second")
    taking = asyncio.create_task(taken(fetch))
    await asyncio.wait_for(second.wait(), 30)
    goes_on.set()
    assert await taking == DATA
    assert not fetch.late


async def test_so_many_give_at_once_and_no_more(givers: Givers) -> None:
    slow = [f"slow {number}" for number in range(AT_ONCE)]
    events = [asyncio.Event() for _ in slow]
    goes_on = [await givers.one(name, before=event) for name, event in zip(slow, events, strict=True)]
    await givers.one("quick")
    fetch = givers.fetch(*slow, "quick")
    taking = asyncio.create_task(taken(fetch))
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), 30)
    await asyncio.sleep(0.1)
    assert givers.asked == slow
    goes_on[1].set()
    assert await taking == DATA
    assert fetch.late == {slow[0]}


async def test_where_all_give_nothing_the_others_are_asked(givers: Givers) -> None:
    for number in range(AT_ONCE):
        await givers.one(f"slow {number}", before=asyncio.Event())
    await givers.one("liar", data=bytes(len(DATA)))
    await givers.one("without", has=False)
    await givers.one("good")
    slow = {f"slow {number}" for number in range(AT_ONCE)}
    fetch = givers.fetch(*sorted(slow), "liar", "without", "good", patience=0.2)
    assert await taken(fetch) == DATA
    assert fetch.late == {*slow, "liar"}
    assert await taken(givers.fetch("liar", "without", "nobody")) is None


async def test_whoever_gives_is_let_go_where_the_reader_ends(givers: Givers) -> None:
    events = [asyncio.Event(), asyncio.Event()]
    for name, event in zip("ab", events, strict=True):
        await givers.one(name, before=event)
    taking = asyncio.create_task(givers.fetch("a", "b").take())
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), 30)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await asyncio.sleep(0)
    assert sorted(givers.let_go) == ["a", "b"]


async def test_where_earlier_ones_have_failed_one_that_takes_long_is_not_waited_for_either(givers: Givers) -> None:
    for number in range(AT_ONCE):
        await givers.one(f"liar {number}", data=bytes(len(DATA)))
    await givers.one("slow", before=asyncio.Event())
    await givers.one("quick")
    liars = [f"liar {number}" for number in range(AT_ONCE)]
    fetch = givers.fetch(*liars, "slow", "quick")
    assert await taken(fetch) == DATA
    assert fetch.late == {*liars, "slow"}
