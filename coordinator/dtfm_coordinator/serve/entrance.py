"""Entrance of a coordinator: one TLS port at which newcomers enrol, and members find the embedded broker and a desk.

Who shows no certificate may enrol, and nothing else; who shows one must be let in by the admission. Until then a
connection costs little, and there are not many.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from dtfm_coordinator.serve.embedded_broker import EmbeddedBroker
from dtfm_coordinator.serve.mqtt_packets import CONTROL_LIMIT, NOT_AUTHORIZED, connack
from dtfm_protocol.control.member_requests import DESK, DeskAnswer, send
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import read_credential
from dtfm_protocol.identity.enrolment import GREETING
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.tally import Tally
from dtfm_protocol.transport.front_door import BACKLOG, DoorLimits, FrontDoor, Visitor
from dtfm_protocol.transport.handshake_turns import HandshakeRates
from dtfm_protocol.transport.shown_credential import show_credential

Enrol = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]
"""Function that enrols a newcomer; it is given what follows the greeting, and the newcomer's IP address."""
Desk = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Function that answers a member, by peer id, that has chosen the desk in its handshake."""

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name: whether a credential has expired is the
admission's to say."""
READ_LIMIT = 32 << 10
"""Bytes that are read ahead of whoever reads a connection; twice as many at most."""


@dataclass(frozen=True)
class EntranceLimits:
    """The bounds of an entrance; times are seconds."""

    handshake: float = 10.0
    """Seconds for the TLS handshake, and before that for its first bytes. A busy machine is slow to answer."""
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
    silence: int = 10
    """Seconds, about, for which the kernel keeps a connection that says nothing to itself (Linux). 0: it does not."""
    rates: HandshakeRates = field(default_factory=HandshakeRates)
    """How many handshakes begin."""


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
        desk: Desk | None = None,
    ) -> None:
        self._listener, self._admission, self._limits = listener, admission, limits
        self._enrol, self._broker, self._desk = enrol, broker, desk
        self._trusted: set[bytes] = set()
        self._context = _server_context(identity, admission.certificate)
        self._door = FrontDoor(listener, _door_limits(limits), self._take)
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
        return self._door.pending

    @property
    def turned_away(self) -> Tally:
        """Connections that came to nothing, by reason."""
        return self._door.turned_away

    async def run(self) -> None:
        """Take connections until cancelled; then every connection is closed."""
        try:
            await self._door.run()
        finally:
            if self._broker is not None:
                self._broker.end()
            await self._door.end()

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
                log.info("A connection was refused: %s", error)
                task.cancel()

    def _end_sessions(self, peer: str) -> None:
        """Close the connections of a member that was kicked."""
        for task, certificate in list(self._members.items()):
            if read_credential(certificate).peer == peer:
                log.info("A connection of %s was closed: it was sent away.", short(peer))
                task.cancel()

    async def _take(self, visitor: Visitor) -> None:
        """Serve whoever has connected, and see the connection closed."""
        writer = None
        try:
            reader, writer = await self._handshake(visitor.connection)
            try:
                await self._serve(reader, writer, visitor)
            except Refused as error:
                self._door.turn_away(str(error))
            writer.close()
            async with asyncio.timeout(self._limits.goodbye):
                await writer.wait_closed()
        except TimeoutError:
            self._door.turn_away("too slow")
        except (OSError, EOFError) as error:
            is_tls = not isinstance(error, ssl.SSLError)
            self._door.turn_away("it left" if is_tls else "no TLS, or no certificate of this swarm")
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visitor: Visitor) -> None:
        """Find out who has connected: a member, a newcomer, or nobody. Raises Refused where it is nobody."""
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if certificate is None:
            await self._newcomer(reader, writer, visitor.host)
            self._door.proven(visitor)
            return
        try:
            peer = self._admission.check(certificate).peer
        except Refused as error:
            if self._has_chosen_desk(writer):
                send(writer, DeskAnswer(refused=str(error)[:400]))
            else:
                await self._say_no(reader, writer)
            raise
        serve = self._service(writer)
        self._door.proven(visitor)
        task = asyncio.current_task()
        assert task is not None
        self._members[task] = certificate
        try:
            await serve(peer, reader, writer)
        finally:
            del self._members[task]

    @staticmethod
    def _has_chosen_desk(writer: asyncio.StreamWriter) -> bool:
        return bool(writer.get_extra_info("ssl_object").selected_alpn_protocol() == DESK)

    def _service(self, writer: asyncio.StreamWriter) -> Desk:
        """Return what the member at the other end has come for. Raises Refused where there is no such thing here."""
        if self._desk is not None and self._has_chosen_desk(writer):
            return self._desk
        if self._broker is None:
            raise Refused("a member, where there is no broker")
        return self._broker.serve

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


@contextlib.asynccontextmanager
async def entrance(
    host: str,
    port: int,
    identity: Identity,
    admission: Admission,
    enrol: Enrol,
    broker: EmbeddedBroker | None = None,
    limits: EntranceLimits = ENTRANCE_LIMITS,
    desk: Desk | None = None,
) -> AsyncIterator[Entrance]:
    """Keep the entrance open until the block is left; then every connection is closed.

    Args:
        host: IP address to listen on.
        port: TCP port to listen on; 0: any.
        identity: the coordinator's key, which it proves on every connection.
        admission: whom it lets in to the broker.
        enrol: enrols whoever shows no certificate.
        broker: the embedded broker; None: members find it elsewhere.
        limits: how long it waits, and how much it takes on.
        desk: answers members that have chosen it; None: there is none.

    Raises:
        UserError: the port is taken, or the address is not this machine's.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from None
    listener.setblocking(False)
    with listener:
        opened = Entrance(listener, identity, admission, enrol, broker, limits, desk)
        running = asyncio.create_task(opened.run())
        try:
            yield opened
        finally:
            running.cancel()
            await asyncio.wait([running])


def _door_limits(limits: EntranceLimits) -> DoorLimits:
    return DoorLimits(
        limits.handshake, limits.pending, limits.pending_an_address, silence=limits.silence, rates=limits.rates
    )


def _server_context(identity: Identity, certificate: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags = ssl.VerifyFlags(int(context.verify_flags) | NO_CHECK_TIME)
    context.set_alpn_protocols([DESK])
    context.num_tickets = 0  # nobody resumes; and a ticket that a client never reads would make a close a reset
    show_credential(context, identity, certificate)
    return context
