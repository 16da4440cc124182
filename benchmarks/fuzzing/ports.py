"""Targets at open ports, over TCP on this machine: what is said before TLS, and what is said within it."""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Iterator
from typing import Any

from benchmarks.flooder import MULTISTREAM, client_hello
from benchmarks.fuzzing.swarm_sides import SWARM, Sides
from benchmarks.fuzzing.trial import Target
from dtfm_coordinator.serve.embedded_broker import EmbeddedBroker
from dtfm_coordinator.serve.entrance import Entrance, EntranceLimits, entrance
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.enrolment import GREETING
from dtfm_protocol.transport.certificates import Trust
from dtfm_protocol.transport.direct_limits import DirectLimits
from dtfm_protocol.transport.pinned_tls import PinnedContext
from dtfm_protocol.transport.tls_connections import TlsConnections
from dtfm_protocol.wire.stream import Stream

HOST = "127.0.0.1"
COST = 100
"""Such inputs take as long as so many others: each has a connection, and some a handshake."""
PATIENCE = 5.0
"""Seconds after which whoever was spoken to must have ended the connection, for this end has."""


class Ports:
    """An entrance and a direct plane that listen, and whatever goes wrong there beside what they refuse."""

    def __init__(self, sides: Sides) -> None:
        """Open both; `close` has to follow."""
        self._sides, self._faults, self._stack = sides, list[BaseException](), contextlib.AsyncExitStack()
        sides.loop.set_exception_handler(self._note)
        sides.wait(self._open())

    async def _open(self) -> None:
        sides = self._sides
        own = Admission(SWARM, [sides.owner.peer_id], authority_certificate(sides.owner), [sides.authority])
        broker = EmbeddedBroker(TopicRules(SWARM, [sides.owner.peer_id]))
        # Short: most inputs end before they are whole, and each would be waited for.
        limits = EntranceLimits(handshake=0.5, first_bytes=0.02, enrolment=0.02, goodbye=0.01)
        opening = entrance(HOST, 0, sides.owner, own, _enrols_nobody, broker, limits)
        self.entrance: Entrance = await self._stack.enter_async_context(opening)
        listener = socket.create_server((HOST, 0), backlog=64)
        listener.setblocking(False)
        self.direct = TlsConnections(
            sides.node, sides.admission(), listener, {"service": _takes_all}, DirectLimits(handshake=0.5)
        )
        await self._stack.enter_async_context(self.direct.running())

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._faults.append(context.get("exception") or RuntimeError(context["message"]))

    def say(self, port: int, context: ssl.SSLContext | None, data: bytes) -> None:
        """Connect, within TLS where there is a context, say it, say no more, and wait for the end.

        Raises:
            BaseException: something went wrong at the other end that was not foreseen there.
            TimeoutError: the other end does not end the connection.
        """
        self._sides.wait(self._said(port, context, data))
        if self._faults:
            fault, self._faults = self._faults[0], []
            raise fault

    async def _said(self, port: int, context: ssl.SSLContext | None, data: bytes) -> None:
        name = {"server_hostname": ""} if context is not None else {}
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context, **name)  # type: ignore[arg-type]
            try:
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    writer.write(data)
                    if context is None:
                        writer.write_eof()
                    else:
                        writer.close()
                    while await reader.read(1 << 16):
                        pass
            finally:
                writer.transport.abort()

    def close(self) -> None:
        """Close both."""
        self._sides.wait(self._stack.aclose())


async def _enrols_nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
    if len(await reader.read(64)) == 64:
        raise Refused("nobody")


async def _takes_all(stream: Stream) -> None:
    while True:
        await stream.read(1)


def port_targets(sides: Sides) -> Iterator[Target]:
    """Yield the targets."""
    ports = Ports(sides)
    sides.when_closed(ports.close)
    hello, connect = client_hello(), b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04name"
    raw = (hello, MULTISTREAM + hello, GREETING, b"GET / HTTP/1.1\r\n\r\n", connect)
    at_entrance, direct = ports.entrance.port, ports.direct.port
    pinned = PinnedContext(sides.owner.peer_id)
    liar = Admission(SWARM, [sides.owner.peer_id], sides.certificate, [sides.authority])
    trusting = Trust(sides.liar, liar).client
    for name, port, context, seeds in (
        ("entrance's port", at_entrance, None, raw),
        ("entrance, within TLS", at_entrance, pinned, (GREETING + b"please",)),
        ("entrance, within a member's TLS", at_entrance, trusting, (connect,)),
        ("direct port", direct, None, raw),
        ("direct port, within a member's TLS", direct, trusting, (b"\x07service", b"\x05other")),
    ):
        yield Target(name, functools.partial(ports.say, port, context), seeds, (), COST)
