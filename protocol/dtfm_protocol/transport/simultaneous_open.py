"""Holes: connections between peers whose routers let nobody in, opened by both at the same time.

A router that lets nobody in lets answers in. When both peers connect at once, each to the address under which the
other's router shows it, each router takes the other's request for an answer (TCP's simultaneous open: RFC 9293, 3.5;
hole punching: RFC 5128, 3.4). A third peer, that a hole connects to as well, tells how it is shown. This fails where a
router shows each connection at another port, unless the other peer can be connected to at any.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator
from typing import Annotated, Self

from pydantic import AfterValidator, Field

from dtfm_protocol.bounds import Port
from dtfm_protocol.schema import Schema

OUTSIDE_LIMIT = 256
"""Bytes of the largest `OutsideAddress` message."""
CONNECTION_LIMIT = 4
"""Connections that are taken at one hole; all but the other peer's are strangers'."""
_AGAIN_SECONDS = 0.1


def _literal(host: str) -> str:
    """Return an IPv4 address as it is; raise a ValueError for anything else."""
    return str(ipaddress.IPv4Address(host))


class OutsideAddress(Schema):
    """The address and port under which a router shows a connection from inside."""

    host: Annotated[str, Field(max_length=15), AfterValidator(_literal)]
    port: Port


class SimultaneousOpen:
    """A hole: a local port from which connections go to several addresses, and at which they are taken; IPv4.

    Raises:
        OSError: there is no port left, or this system lets sockets not share one.
    """

    def __init__(self) -> None:
        self._listener = _socket(0)
        try:
            self._listener.listen(CONNECTION_LIMIT)
        except BaseException:
            self._listener.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    @property
    def port(self) -> int:
        """The local port."""
        return int(self._listener.getsockname()[1])

    async def connect(self, host: str, port: int) -> socket.socket:
        """Open a TCP connection from the hole.

        Raises:
            OSError: no connection comes about.
        """
        connection = _socket(self.port)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (host, port))
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.asynccontextmanager
    async def meeting(self, other: OutsideAddress) -> AsyncIterator["asyncio.Queue[socket.socket]"]:
        """Try to connect to `other`, and take connections, as long as the block lasts; yield those that come about.

        Whoever takes a connection out of the queue owns it.
        """
        found: asyncio.Queue[socket.socket] = asyncio.Queue()
        tasks = [asyncio.create_task(self._reach(other, found)), asyncio.create_task(self._take(found))]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while not found.empty():
                found.get_nowait().close()

    async def _reach(self, other: OutsideAddress, found: "asyncio.Queue[socket.socket]") -> None:
        while True:
            try:
                connection = await self.connect(other.host, other.port)
            except OSError:  # refused, by a router that says so, before the other side has begun
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                found.put_nowait(connection)
                return

    async def _take(self, found: "asyncio.Queue[socket.socket]") -> None:
        with contextlib.suppress(OSError):
            for _ in range(CONNECTION_LIMIT):
                connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
                found.put_nowait(connection)


def _socket(port: int) -> socket.socket:
    """Open a socket at a local port that it shares with others of this process; 0: a free one."""
    shared = getattr(socket, "SO_REUSEPORT", None)
    if shared is None:
        raise OSError("sockets cannot share a port on this system")
    opened = socket.socket()
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.SOL_SOCKET, shared, 1)
        opened.bind(("0.0.0.0", port))
    except BaseException:
        opened.close()
        raise
    return opened
