"""The kernel's knowledge of how a stream's bytes get to the other end (Linux).

Its own sample of the rate (`tcpi_delivery_rate`) does not do: a paced sender whose packets are acknowledged one by one
is told how fast a single packet travels, which behind a line that lets short bursts pass is much more than it carries
for long.
"""

import socket
import sys
import time

from dtfm_protocol.wire.stream import BytesOnTheWay

SHORTEST_SAMPLE_SECONDS = 0.25
"""Seconds that a sample of the rate takes at least: over less, single acknowledgements would make the rate."""
LONGEST_GAP_SECONDS = 0.1
"""Seconds between two waits of writes beyond which too little may have been sent in between: a sample begins anew."""
_RTT, _BYTES_ACKED, _MIN_RTT = slice(68, 72), slice(120, 128), slice(148, 152)
_BUSY, _UNREAD, _UNWRITTEN = slice(168, 176), slice(176, 184), slice(184, 192)
"""Places of `tcpi_rtt` (u32, microseconds), `tcpi_bytes_acked` (u64), `tcpi_min_rtt` (u32), `tcpi_busy_time` (u64,
microseconds), `tcpi_rwnd_limited` and `tcpi_sndbuf_limited` in `struct tcp_info` of <linux/tcp.h>."""
_MSS, _UNACKED, _SACKED, _BYTES_RECEIVED = slice(16, 20), slice(24, 28), slice(28, 32), slice(128, 136)
"""Places of `tcpi_snd_mss`, `tcpi_unacked` and `tcpi_sacked` (u32: bytes of a segment, segments that were sent and not
acknowledged, and those of them that the other end has behind a gap), and of `tcpi_bytes_received` (u64)."""


class TcpInfo:
    """A sampler of the rate at which the bytes of one connection arrive."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def wait(self) -> None:
        """Note that a write begins to wait, for there is more to send than the kernel takes. What was sent before
        belongs to the same sample where that is not long ago."""
        if self._last is not None and time.monotonic() - self._last[0] > LONGEST_GAP_SECONDS:
            self._first = self._last = None

    def look(self, connection: socket.socket) -> None:
        """Note how much has arrived; to be called when a write has waited."""
        values = _told(connection, _BYTES_ACKED)
        if values is None:
            return
        self._last = time.monotonic(), values[0]
        if self._first is None:
            self._first = self._last  # after a wait: the kernel's empty buffer took what came before at once

    def take(self) -> float | None:
        """Return the bytes a second from the first look of a sample to the last one, and begin another sample; None:
        there is none yet that is long enough. Short writes that follow each other closely make one together."""
        first, last = self._first, self._last
        if first is None or last is None or last[0] - first[0] < SHORTEST_SAMPLE_SECONDS:
            return None
        self._first = last
        return (last[1] - first[1]) / (last[0] - first[0])


def queued(connection: socket.socket) -> float | None:
    """Return the seconds by which a round trip takes longer now than without a queue on the way; None: not known."""
    values = _told(connection, _RTT, _MIN_RTT)
    return None if values is None else max(0, values[0] - values[1]) * 1e-6


def progress(connection: socket.socket) -> BytesOnTheWay | None:
    """Return how far a connection's bytes have come; None: not known."""
    more = _MSS, _UNACKED, _SACKED, _BYTES_RECEIVED
    values = _told(connection, _BYTES_ACKED, _BUSY, _UNREAD, _UNWRITTEN, _MIN_RTT, *more)
    if values is None:
        return None
    acknowledged, busy, unread, unwritten, round_trip, mss, unacked, sacked, received = values
    working = max(0, busy - unread - unwritten) * 1e-6
    delivered, on_the_way = acknowledged + mss * sacked, mss * max(0, unacked - sacked)
    return BytesOnTheWay(acknowledged, working, round_trip * 1e-6, delivered, received, on_the_way)


def _told(connection: socket.socket, *fields: slice) -> list[int] | None:
    """Return fields of `struct tcp_info`; None where the kernel does not say, or the connection has ended."""
    if not sys.platform.startswith("linux"):
        return None
    size = max(field.stop for field in fields)
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:
        return None
    return [int.from_bytes(info[field], sys.byteorder) for field in fields] if len(info) == size else None
