"""The two sides of a swarm that is fuzzed: who is there, and streams in memory on which they may say anything."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import authority_certificate, issue_credential
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.envelope import Post
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.wire.stream import Bytes, BytesOnTheWay, Stream, StreamClosed, Way

T = TypeVar("T")
SWARM, TOKEN = "0123456789abcdef", "00112233aabbccdd"
YEAR = 365 * 86_400.0
LAYERS = 4


class Sides:
    """A coordinator, a node that fuzzed bytes reach, and the member that sends them."""

    def __init__(self) -> None:
        """Make them; nothing runs."""
        self.owner, self.node, self.liar = Identity.generate(), Identity.generate(), Identity.generate()
        self.until = time.time() + YEAR
        self.authority = authority_certificate(self.owner)
        self.certificate = issue_credential(self.owner, SWARM, self.liar.peer_id, TOKEN, self.until)
        self._own = issue_credential(self.owner, SWARM, self.node.peer_id, TOKEN, self.until)
        self.token = EntryToken.issue(self.owner, SWARM, 5, int(self.until))
        self.posts = {identity.peer_id: Post(SWARM, identity) for identity in (self.owner, self.node, self.liar)}
        self.loop = asyncio.new_event_loop()
        self._closing = list[Callable[[], None]]()
        self._folder = TemporaryDirectory(prefix="fuzzing-")
        self.folder = Path(self._folder.name)

    def admission(self) -> Admission:
        """Return a new admission of the node."""
        return Admission(SWARM, [self.owner.peer_id], self._own, [self.authority])

    def invite(self) -> Invite:
        """Return an invite of the coordinator."""
        return Invite(
            swarm=SWARM,
            coordinator=self.owner.peer_id,
            dht=(f"/ip4/192.0.2.1/tcp/7701/p2p/{self.owner.peer_id}",),
            entrance="192.0.2.1:7700",
            token=self.token,
        )

    def wait(self, work: Awaitable[T]) -> T:
        """Run what needs an event loop to its end."""
        return self.loop.run_until_complete(work)

    def when_closed(self, told: Callable[[], None]) -> None:
        """Call `told` before the event loop is closed."""
        self._closing.append(told)

    def close(self) -> None:
        """Leave nothing."""
        for told in self._closing:
            told()
        self.loop.close()
        self._folder.cleanup()


class SaidBefore(Stream):
    """A stream on which the other end, `peer`, has said all by now, and reads nothing."""

    way: Way = "direct"

    def __init__(self, peer: str, data: bytes) -> None:
        self.peer = peer
        self._data, self._at = data, 0

    async def read(self, size: int) -> Bytes:
        """Read exactly `size` bytes, as `Stream.read`."""
        if size > len(self._data) - self._at:
            self._at = len(self._data)
            raise StreamClosed("the other end has said no more")
        self._at += size
        return self._data[self._at - size : self._at]

    async def write(self, *buffers: Bytes) -> None:
        """Say something to nobody."""

    async def forward(self, other: Stream) -> None:
        """Hand on what is left, as `Pipe.forward`."""
        await other.write(self._data[self._at :])

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def drop(self) -> None:
        """Do nothing, as `close`."""

    def abort(self) -> None:
        """Do nothing: there is nothing to end."""

    def pace(self, bytes_per_second: float) -> None:
        """Do nothing: it is not slow."""

    def grow_until_loss(self) -> None:
        """Do nothing: it has no window."""

    def delivered(self) -> float | None:
        """Return that it is not known."""
        return None

    def queued(self) -> float | None:
        """Return that it is not known."""
        return None

    def progress(self) -> BytesOnTheWay | None:
        """Return that it is not known."""
        return None


class Writer:
    """A transport's writing end, to nobody; what `asyncio.StreamWriter` offers, as far as it is used."""

    def __init__(self) -> None:
        self.transport = self
        self.is_over = False

    def write(self, data: bytes) -> None:
        """Send bytes to nobody."""

    async def drain(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """End it."""
        self.is_over = True

    abort = close

    async def wait_closed(self) -> None:
        """Return at once."""

    def is_closing(self) -> bool:
        """Whether it has ended."""
        return self.is_over

    def get_write_buffer_size(self) -> int:
        """Return that nothing waits."""
        return 0


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run what never waits, as the streams here do not.

    Raises:
        AssertionError: it waits.
    """
    try:
        work.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    work.close()
    raise AssertionError("it waits for more than what was said")


def reader_of(data: bytes, loop: asyncio.AbstractEventLoop) -> asyncio.StreamReader:
    """Return a reader to which the other end has said `data`, and gone."""
    reader = asyncio.StreamReader(loop=loop)
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def sized(data: bytes, length: int = 4) -> bytes:
    """Return bytes with their length before them."""
    return len(data).to_bytes(length, "big") + data
