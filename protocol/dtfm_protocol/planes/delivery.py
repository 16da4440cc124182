"""How fast the kernel gets a stream's bytes to the other end, as acknowledgements say (Linux).

Its own sample (`tcpi_delivery_rate`) does not do: a paced sender whose packets are acknowledged one by one is told how
fast a single packet travels, which behind a line that lets short bursts pass is much more than it carries for long.
"""

import socket
import sys
import time

LEAST_SECONDS = 0.25
"""Over less, single acknowledgements would make the rate."""
_BYTES_ACKED = slice(120, 128)
"""`tcpi_bytes_acked` (u64) in `struct tcp_info` of <linux/tcp.h>."""


class Delivery:
    """Of one connection."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def look(self, connection: socket.socket) -> None:
        """Note how much has arrived; to be called while there is more to send than the kernel takes."""
        if not sys.platform.startswith("linux"):
            return
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.stop)
        except OSError:
            return  # it has ended
        if len(info) < _BYTES_ACKED.stop:
            return
        self._last = time.monotonic(), int.from_bytes(info[_BYTES_ACKED], sys.byteorder)
        if self._first is None:
            self._first = self._last

    def take(self) -> float | None:
        """Bytes a second between the first look and the last one since this was last asked; None: it was short."""
        first, last = self._first, self._last
        self._first = self._last = None
        if first is None or last is None or last[0] - first[0] < LEAST_SECONDS:
            return None
        return (last[1] - first[1]) / (last[0] - first[0])
