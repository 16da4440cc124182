"""Embedded MQTT broker: sessions of members whose keys the entrance has proven. It listens nowhere itself.

It understands what the control plane uses of MQTT 3.1.1 and refuses the rest, and it holds nothing without a bound.
`session_gate` decides what of a session it acts on, `message_router` who gets it.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from dtfm_coordinator.serve.message_router import MessageRouter
from dtfm_coordinator.serve.mqtt_packets import (
    PINGRESP,
    Connect,
    Disconnect,
    Packet,
    Ping,
    Publication,
    Subscribe,
    Unsubscribe,
    connack,
    puback,
    suback,
    unsuback,
)
from dtfm_coordinator.serve.session_gate import BROKER_LIMITS, BrokerLimits, PeerAllowance, SessionGate
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log

READ_BYTES = 64 << 10
REMEMBERED = 4096
"""Peers of which it is remembered what they have used."""
NAMED = 3
"""Sessions of one peer whose end the log tells."""


class BrokerSession:
    """A member's connection, as the broker sees it."""

    def __init__(self, peer: str, writer: asyncio.StreamWriter, backlog: int) -> None:
        self.peer = peer
        self.client = ""
        """Client id; "" before the first packet."""
        self.will: Publication | None = None
        """Message to be published if it ends without a goodbye."""
        self.is_over = False
        self.fault = ""
        """Reason why the broker ended it; "": it did not."""
        self._writer, self._backlog = writer, backlog

    def send(self, data: bytes) -> None:
        """Send bytes, or end the session of a client that does not read."""
        if self._writer.transport.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() + len(data) > self._backlog:
            self.end("it does not read what it has asked for")
        else:
            self._writer.write(data)

    def end(self, why: str) -> None:
        """End it at once."""
        self.fault = self.fault or why
        self._writer.transport.abort()


class EmbeddedBroker:
    """Broker of one swarm's control messages."""

    def __init__(
        self,
        rules: TopicRules,
        limits: BrokerLimits = BROKER_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without a session.

        Args:
            rules: who may write and read which topics.
            limits: what members may ask of it.
            clock: gives seconds.
        """
        self.ended: Counter[str] = Counter()
        """Sessions that the broker has ended, by peer."""
        self._rules, self._limits, self._clock = rules, limits, clock
        self._router: MessageRouter[BrokerSession] = MessageRouter()
        self._sessions: dict[str, BrokerSession] = {}
        self._used: OrderedDict[str, PeerAllowance] = OrderedDict()
        self._is_over = False

    @property
    def sessions(self) -> list[str]:
        """Peers that have a session, once for each."""
        return [session.peer for session in self._sessions.values()]

    async def serve(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Be the broker of one connection until it ends, or until cancelled. Its other end has proven to be `peer`."""
        session = BrokerSession(peer, writer, self._limits.backlog)
        try:
            await self._read(session, reader)
        except Refused as error:
            session.fault = session.fault or str(error)
        except TimeoutError:
            session.fault = session.fault or ("it gives no sign of life" if session.client else "no first packet came")
        except OSError:
            pass  # it is gone; whom that concerns hears the last will
        finally:
            self._leave(session)
            if session.fault:
                self._name(session)
                writer.transport.abort()
            writer.close()

    def end(self) -> None:
        """End all sessions, and take none any more; nobody hears a last will."""
        self._is_over = True
        for session in list(self._sessions.values()):
            session.end("")

    async def _read(self, session: BrokerSession, reader: asyncio.StreamReader) -> None:
        """Act on what comes, until the connection ends. Raises Refused, TimeoutError and OSError where it has to."""
        gate = SessionGate(session.peer, self._rules, self._limits, self._allowance(session.peer))
        patience = self._limits.first_packet
        while True:
            async with asyncio.timeout(patience):
                data = await reader.read(READ_BYTES)
            if not data:
                return
            for packet in gate.on(data, self._clock()):
                self._act(session, packet)
                if session.is_over:
                    return
            if gate.connected is not None:
                patience = 1.5 * gate.connected.keep_alive

    def _act(self, session: BrokerSession, packet: Packet) -> None:
        """Do what a packet asks for; it has been checked."""
        if isinstance(packet, Connect):
            self._connect(session, packet)
        elif isinstance(packet, Publication):
            self._publish(packet)
            if packet.id is not None:
                session.send(puback(packet.id))
        elif isinstance(packet, Subscribe):
            session.send(suback(packet.id, len(packet.filters)))
            for message in self._router.subscribe(session, packet.filters):
                session.send(message.encode(retained=True))
        elif isinstance(packet, Unsubscribe):
            self._router.unsubscribe(session, packet.filters)
            session.send(unsuback(packet.id))
        elif isinstance(packet, Ping):
            session.send(PINGRESP)
        elif isinstance(packet, Disconnect):
            session.will, session.is_over = None, True

    def _connect(self, session: BrokerSession, packet: Connect) -> None:
        """Let a session in, where need be in the place of an older one of the same peer."""
        own = [one for one in self._sessions.values() if one.peer == session.peer]
        if self._is_over:
            raise Refused("the broker is ending")
        again = self._sessions.get(packet.client)
        if again is None and len(own) >= self._limits.peer_sessions:
            again = own[0]
        if again is not None:
            again.end("")
            self._leave(again)  # with its last will, before the new one says that it is here
        elif len(self._sessions) >= self._limits.sessions and session.peer not in self._rules.coordinators:
            raise Refused("no room for more sessions")
        session.client, session.will = packet.client, packet.will
        self._sessions[packet.client] = session
        session.send(connack())

    def _publish(self, message: Publication) -> None:
        data = message.encode(retained=False)
        for reader in self._router.publish(message, lambda peer: peer in self.sessions):
            reader.send(data)

    def _leave(self, session: BrokerSession) -> None:
        """Forget a session, and publish its last will if it has not said goodbye. A second time nothing happens."""
        self._router.leave(session)
        if self._sessions.get(session.client) is session:
            del self._sessions[session.client]
        will, session.will = session.will, None
        if will is not None and not self._is_over:
            self._publish(will)

    def _allowance(self, peer: str) -> PeerAllowance | None:
        """Return what `peer` may use. Raises Refused where it comes back too often."""
        if peer in self._rules.coordinators:
            return None
        now = self._clock()
        allowance = self._used.pop(peer, None) or PeerAllowance(self._limits, now)
        self._used[peer] = allowance
        if len(self._used) > REMEMBERED:
            self._used.popitem(last=False)
        if not allowance.connects.use(1, now):
            raise Refused("it comes back too often")
        return allowance

    def _name(self, session: BrokerSession) -> None:
        """Say who was turned away and why: a few times for each peer, for it decides how often."""
        if session.peer in self.ended or len(self.ended) < REMEMBERED:
            self.ended[session.peer] += 1
        if 0 < self.ended[session.peer] <= NAMED:
            log.warning("%s was disconnected: %s", short(session.peer), session.fault)
