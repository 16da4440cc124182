"""Entrance of a coordinator: one TLS port at which newcomers enrol, and members find the embedded broker.

Who shows no certificate may enrol, and nothing else; who shows one must be let in by the admission. Until then a
connection costs little, and there are not many.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from dtfm_coordinator.serve.embedded_broker import EmbeddedBroker
from dtfm_coordinator.serve.mqtt_packets import CONTROL_LIMIT, NOT_AUTHORIZED, connack
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import read_credential
from dtfm_protocol.identity.enrolment import GREETING
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.transport.shown_credential import show_credential
from dtfm_protocol.transport.waiting_room import WaitingRoom, network_of

Enrol = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]
"""Function that enrols a newcomer; it is given what follows the greeting, and the newcomer's IP address."""

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name: whether a credential has expired is the
admission's to say."""
READ_LIMIT = 32 << 10
"""Bytes that are read ahead of whoever reads a connection; twice as many at most."""


@dataclass(frozen=True)
class EntranceLimits:
    """The bounds of an entrance; times are seconds."""

    handshake: float = 10.0
    """Seconds for the TLS handshake. A busy machine is slow to answer."""
    first_bytes: float = 5.0
    """Seconds after that for the first bytes of whoever may only enrol, or not even that."""
    enrolment: float = 20.0
    """Seconds for an enrolment, after the greeting."""
    goodbye: float = 2.0
    """Seconds for the last bytes of a connection that is being closed."""
    pending: int = 256
    """Connections that have proven nothing yet, those that enrol included."""
    pending_an_address: int = 64
    """Such connections of one address, or of one IPv6 network."""
    accept_pause: float = 0.5
    """Seconds without new connections where this machine has no room for one."""


ENTRANCE_LIMITS = EntranceLimits()
"""Limits that hold where nobody passes others."""


class Entrance:
    """An open entrance; see `entrance`."""

    def __init__(
        self,
        listener: socket.socket,
        identity: Identity,
        admission: Admission,
        enrol: Enrol,
        broker: EmbeddedBroker | None,
        limits: EntranceLimits,
    ) -> None:
        self.turned_away = Tally()
        """Connections that came to nothing, by reason."""
        self._listener, self._admission, self._limits = listener, admission, limits
        self._enrol, self._broker = enrol, broker
        self._trusted: set[bytes] = set()
        self._context = _server_context(identity, admission.certificate)
        self._pending = WaitingRoom[asyncio.Task[None]](limits.pending, limits.pending_an_address)
        self._tasks: set[asyncio.Task[None]] = set()
        self._members: dict[asyncio.Task[None], bytes] = {}
        self._take_up()
        admission.when_changed(self._take_up)
        admission.when_kicked(self._end_sessions)

    @property
    def port(self) -> int:
        """The port at which connections are taken."""
        return int(self._listener.getsockname()[1])

    @property
    def pending(self) -> int:
        """Number of connections that have proven nothing yet."""
        return len(self._pending)

    async def accept(self) -> None:
        """Take connections, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError as error:  # no file descriptor left, or the other end gave up before it was taken
                self._turn_away(f"not accepted: {error.strerror}")
                await asyncio.sleep(self._limits.accept_pause)
                continue
            task = asyncio.create_task(self._take(connection, address[0]))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, connection))
            crowded_out = self._pending.enter(task, network_of(address[0]))
            if crowded_out is not None:
                self._turn_away("too many at once")
                crowded_out.cancel()

    async def end(self) -> None:
        """Close every connection."""
        if self._broker is not None:
            self._broker.end()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take_up(self) -> None:
        """Trust new coordinators, and close the connections of those who are members no more."""
        for authority in self._admission.authorities:
            if authority not in self._trusted:
                self._trusted.add(authority)
                self._context.load_verify_locations(cadata=authority)
        for task, certificate in list(self._members.items()):
            try:
                self._admission.check(certificate)
            except Refused as error:
                log.info("closing a connection to the broker: %s", error)
                task.cancel()

    def _end_sessions(self, peer: str) -> None:
        """Close the connections of a member that was kicked."""
        for task, certificate in list(self._members.items()):
            if read_credential(certificate).peer == peer:
                log.info("closing a connection of %s to the broker: it was kicked", short(peer))
                task.cancel()

    async def _take(self, connection: socket.socket, host: str) -> None:
        """Serve whoever has connected, and see the connection closed."""
        writer = None
        try:
            reader, writer = await self._handshake(connection)
            try:
                await self._serve(reader, writer, host)
            except Refused as error:
                self._turn_away(str(error))
            writer.close()
            async with asyncio.timeout(self._limits.goodbye):
                await writer.wait_closed()
        except TimeoutError:
            self._turn_away("too slow")
        except (OSError, EOFError) as error:
            self._turn_away("no TLS, or no certificate of this swarm" if isinstance(error, ssl.SSLError) else "it left")
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        """Find out who has connected: a member, a newcomer, or nobody. Raises Refused where it is nobody."""
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if certificate is None:
            await self._newcomer(reader, writer, host)
            return
        try:
            peer = self._admission.check(certificate).peer
        except Refused:
            await self._say_no(reader, writer)
            raise
        if self._broker is None:
            raise Refused("a member, where there is no broker")
        task = asyncio.current_task()
        assert task is not None
        self._pending.leave(task)
        self._members[task] = certificate
        await self._broker.serve(peer, reader, writer)

    async def _handshake(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Let the other end prove its key, if it shows one, and have the coordinator's proven to it."""
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = asyncio.StreamReader(READ_LIMIT, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=self._limits.handshake,
            ssl_shutdown_timeout=self._limits.goodbye,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _newcomer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        """Enrol whoever asks for it, in bounded time."""
        async with asyncio.timeout(self._limits.first_bytes):
            greeting = await reader.readexactly(len(GREETING))
        if greeting != GREETING:
            raise Refused("no certificate, and no wish to enrol")
        async with asyncio.timeout(self._limits.enrolment):
            await self._enrol(reader, writer, host)
            await writer.drain()

    async def _say_no(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell one who is no member, in MQTT's words: it waits for them once it has introduced itself."""
        async with asyncio.timeout(self._limits.first_bytes):
            await reader.read(CONTROL_LIMIT)
            writer.write(connack(NOT_AUTHORIZED))
            await writer.drain()

    def _done(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        connection.close()  # a task that was cancelled before it began has not
        self._tasks.discard(task)
        self._pending.leave(task)
        self._members.pop(task, None)

    def _turn_away(self, why: str) -> None:
        """Count a connection that comes to nothing; each reason is named once, for anybody can cause many."""
        if self.turned_away.note(why):
            log.debug("turned a connection to the entrance away: %s", why)


@contextlib.asynccontextmanager
async def entrance(
    host: str,
    port: int,
    identity: Identity,
    admission: Admission,
    enrol: Enrol,
    broker: EmbeddedBroker | None = None,
    limits: EntranceLimits = ENTRANCE_LIMITS,
) -> AsyncIterator[Entrance]:
    """Keep the entrance open until the block is left; then every connection is closed.

    Args:
        host: IP address to listen on.
        port: TCP port to listen on; 0: any.
        identity: the coordinator's key, which it proves on every connection.
        admission: whom it lets in to the broker.
        enrol: enrols whoever shows no certificate.
        broker: the embedded broker; None: members have nothing to look for here.
        limits: how long it waits, and how much it takes on.

    Raises:
        UserError: the port is taken, or the address is not this machine's.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from None
    listener.setblocking(False)
    with listener:
        opened = Entrance(listener, identity, admission, enrol, broker, limits)
        accepting = asyncio.create_task(opened.accept())
        try:
            yield opened
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])
            await opened.end()


def _server_context(identity: Identity, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags = ssl.VerifyFlags(int(context.verify_flags) | NO_CHECK_TIME)
    context.num_tickets = 0  # nobody resumes; and a ticket that a client never reads would make a close a reset
    show_credential(context, identity, certificate)
    return context
