"""TCP sockets of direct connections: where they are taken, and how they are opened."""

import asyncio
import socket

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.front_door import BACKLOG


def listener_at(listen: str, port: int) -> socket.socket:
    """Open a socket that listens at `port`, or, where that is taken, at any."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    try:
        listener = socket.create_server((listen, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if not port:
            raise UserError(f"cannot listen on {listen} for direct streams: {error}") from None
        log.info("cannot take direct streams at port %d (%s): taking another", port, error)
        return listener_at(listen, 0)
    listener.setblocking(False)
    return listener


async def connected_to(host: str, port: int) -> socket.socket:
    """Open a non-blocking TCP connection to a host's port.

    Raises:
        OSError: no connection comes about.
    """
    connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
    except BaseException:
        connection.close()
        raise
    return connection
