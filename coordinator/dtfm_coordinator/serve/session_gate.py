"""Gate of one MQTT session: which packets of a member go on to the broker, and at what rate."""

from dataclasses import dataclass

from dtfm_coordinator.serve.mqtt_packets import Connect, Packet, PacketReader, Publication, Subscribe, Unsubscribe
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.errors import Refused
from dtfm_protocol.process.allowance import Allowance

MIB = 1 << 20


@dataclass(frozen=True)
class BrokerLimits:
    """The bounds of an embedded broker. A member that passes one loses its session."""

    first_packet: float = 10.0
    """Seconds that a member may take to introduce itself, and to read the answer to that."""
    keep_alive: int = 120
    """Most seconds between two signs of life that a client may ask for; after one and a half times as many it is
    dead."""
    filters: int = 32
    """Topics that one session may read."""
    sessions: int = 2048
    """Sessions in all."""
    peer_sessions: int = 4
    """Sessions of one peer; with one more its oldest has to go. A second node with the same identity is told from the
    first one, and a doctor may look in."""
    backlog: int = 16 * MIB
    """Bytes that wait for a session that does not read them."""
    packets: float = 64.0
    """Packets a second of one peer in the long run, all its sessions together. A node sends one or two."""
    packet_burst: float = 1024.0
    bytes: float = 1.0 * MIB
    """Bytes a second of one peer in the long run. A node's report has some thousand, and rarely a plan."""
    byte_burst: float = 16.0 * MIB
    connects: float = 1.0
    """Sessions a second of one peer in the long run."""
    connect_burst: float = 32.0


BROKER_LIMITS = BrokerLimits()
"""Limits that hold where nobody passes others."""


class PeerAllowance:
    """What one peer may use of the broker, in all its sessions, one after the other or at once."""

    def __init__(self, limits: BrokerLimits, now: float) -> None:
        self.connects = Allowance(limits.connects, limits.connect_burst, now)
        self.packets = Allowance(limits.packets, limits.packet_burst, now)
        self.bytes = Allowance(limits.bytes, limits.byte_burst, now)

    def is_full(self, now: float) -> bool:
        """Whether nothing is known of it that a new one would not know."""
        return all(one.is_full(now) for one in (self.connects, self.packets, self.bytes))


class SessionGate:
    """Gate of one session: `on(bytes, now)` gives the packets that the broker may act on."""

    def __init__(
        self, peer: str, rules: TopicRules, limits: BrokerLimits, allowance: PeerAllowance | None = None
    ) -> None:
        """Let `peer` in, whose key has been proven.

        Args:
            peer: the peer id.
            rules: who may write and read what.
            limits: bounds of the session.
            allowance: what the peer may use; None: a coordinator's, which is not counted.
        """
        self.connected: Connect | None = None
        """First packet, once it has come."""
        self._peer, self._rules, self._limits, self._allowance = peer, rules, limits, allowance
        self._filters: set[str] = set()
        self._reader = PacketReader(rules.most_bytes(peer) + 256)  # the topic's name comes with it

    def on(self, data: bytes, now: float) -> list[Packet]:
        """Return the packets that `data` completes, all of which the peer may send.

        Raises:
            Refused: one of them it may not; the session is to end.
        """
        if self._allowance is not None and not self._allowance.bytes.use(len(data), now):
            raise Refused("more bytes than its share")
        found = []
        for packet in self._reader.feed(data):
            self._check(packet, now)
            found.append(packet)
        return found

    def _check(self, packet: Packet, now: float) -> None:
        if self._allowance is not None and not self._allowance.packets.use(1, now):
            raise Refused("more packets than its share")
        if isinstance(packet, Connect) == (self.connected is not None):
            raise Refused("a session that does not begin as one" if self.connected is None else "a second introduction")
        if isinstance(packet, Connect):
            self._check_connect(packet)
            self.connected = packet
        elif isinstance(packet, Publication):
            self._rules.check_message(self._peer, packet.topic, len(packet.payload), retain=packet.retain)
        elif isinstance(packet, Subscribe):
            for name in packet.filters:
                self._rules.check_filter(self._peer, name)
            self._filters.update(packet.filters)
            if len(self._filters) > self._limits.filters:
                raise Refused(f"requests for more than {self._limits.filters} topics")
        elif isinstance(packet, Unsubscribe):
            self._filters.difference_update(packet.filters)

    def _check_connect(self, packet: Connect) -> None:
        if not packet.client.startswith(f"{self._peer}."):
            raise Refused("the client id of another peer")
        if packet.user not in {None, "", self._peer}:
            raise Refused("the user name of another peer")
        if not 0 < packet.keep_alive <= self._limits.keep_alive:
            raise Refused(f"{packet.keep_alive} s between signs of life")
        if packet.will is not None:
            will = packet.will
            kind = self._rules.check_message(self._peer, will.topic, len(will.payload), retain=will.retain)
            if kind.name != "presence":
                raise Refused(f"a last will on {kind.name}")
