"""The data plane's interface: ordered byte streams between peers that know each other by peer id."""

import struct
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol, TypeVar

from pydantic import ValidationError

from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import Refused
from dtfm_protocol.schema import Schema

S = TypeVar("S", bound=Schema)
Bytes = bytes | bytearray | memoryview
"""Bytes in memory that a stream sends, or has received."""
Handler = Callable[["Stream"], Awaitable[None]]
"""A function that answers a stream which a peer has opened."""
Way = Literal["direct", "punched", "relayed"]
"""The kind of way by which a stream gets to its peer. "direct": over a connection to an address at which one of the
two listens; "punched": over one that both have opened at the same time, through routers that let nobody in;
"relayed": through a third peer."""

MESSAGE_LIMIT = 1 << 20
"""Bytes of the largest JSON message on a stream."""


class StreamClosed(ConnectionError):
    """The end of a stream: the other end is gone, or the stream was reset."""


class Unreachable(ConnectionError):
    """The failure to open any stream to the peer."""


class BytesOnTheWay(NamedTuple):
    """Count of a stream's bytes on their way to the other end, as the sender's kernel keeps it since it began."""

    acknowledged: int
    """Number of bytes that the other end's kernel has."""
    busy: float
    """Seconds for which bytes were on their way, or waited for the line; not for the other end to read, nor for this
    one to write."""
    round_trip: float
    """Seconds of the shortest round trip of late."""
    delivered: int = 0
    """Number of bytes that the other end has, those behind a gap too; 0: not known."""
    received: int = 0
    """Number of bytes that have come from there without a gap; 0: not known."""
    on_the_way: int = 0
    """Number of bytes, about, that were sent, and that the other end is not known to have: what was lost is of them
    until it has come; 0: none, or not known."""


class Stream(Protocol):
    """A bidirectional stream; `peer` is proven by the transport."""

    peer: str
    way: Way

    async def read(self, size: int) -> Bytes:
        """Read exactly `size` bytes.

        Raises:
            StreamClosed: the stream ends before that.
        """

    async def write(self, *buffers: Bytes) -> None:
        """Send all of `buffers`; return when the transport can take more.

        Raises:
            StreamClosed: the other end is gone.
        """

    def pace(self, bytes_per_second: float) -> None:
        """Limit the rate of sending from now on, in bytes a second; infinite: no limit. Not every transport can."""

    def grow_until_loss(self) -> None:
        """Have the window within which this end sends open until packets are lost, whatever round trips say, as is due
        where a link is measured. Not every transport can."""

    def delivered(self) -> float | None:
        """Return the bytes a second that arrived, since this was last asked, while writes waited for the line.

        None where they waited for less than a quarter of a second, or where the transport cannot say.
        """

    def queued(self) -> float | None:
        """Return the seconds by which a queue on the way makes a round trip longer now; None: not known."""

    def progress(self) -> BytesOnTheWay | None:
        """Return how far what was written has come; None where the transport cannot say."""

    async def close(self) -> None:
        """End the stream; idempotent."""

    def drop(self) -> None:
        """End the stream at once, with what either end has written and not sent yet; idempotent."""


class DataPlane(Protocol):
    """A peer's data plane: it opens streams to peers and answers theirs."""

    peer_id: str

    async def addresses(self) -> tuple[str, ...]:
        """Return the multiaddresses at which this peer can be reached."""

    @property
    def port(self) -> int | None:
        """Port at which this peer takes direct connections; None: it takes none."""

    async def introduce(self, peer: str, addresses: tuple[str, ...], port: int | None = None) -> None:
        """Tell where `peer` can be reached, so that a stream can be opened without a search.

        Args:
            port: port at which it takes direct connections, by its own word; None: that is not known.
        """

    def way(self, peer: str) -> Way | None:
        """Return the way of the newest stream that was opened to `peer`; None where there was none."""

    def heard(self, peer: str) -> float:
        """Return when bytes of `peer` came last, on the clock of `time.monotonic`; minus infinity: not known."""

    def carried(self, peer: str) -> tuple[int, int]:
        """Return the bytes that have got to `peer`, and that have come from there, over all streams with it that are
        open, as the kernel counts them; 0 where it does not."""

    async def open(self, peer: str, service: str) -> Stream:
        """Open a stream to a service of `peer`.

        Raises:
            Unreachable: there is no route to the peer, or it does not offer the service.
        """

    async def serve(self, service: str, handler: Handler) -> None:
        """Answer streams to `service`; the stream is closed when `handler` returns or fails."""


async def write_message(stream: Stream, message: Schema) -> None:
    """Send one JSON message: its length in 4 bytes, then its text."""
    data = message.model_dump_json().encode()
    await stream.write(struct.pack("!I", len(data)) + data)


async def read_message(stream: Stream, schema: type[S], limit: int = MESSAGE_LIMIT) -> S:
    """Receive one JSON message.

    Raises:
        Refused: too long, or not what `schema` says.
        StreamClosed: the stream ended.
    """
    (size,) = struct.unpack("!I", await stream.read(4))
    if size > limit:
        raise Refused(f"a message of {size} bytes, more than {limit}")
    data = await stream.read(size)
    try:
        return schema.model_validate_json(bytes(data))
    except ValidationError as error:
        raise Refused(f"{schema.__name__}: {printable(error.errors()[0]['msg'])}") from None
