"""The limits of a direct plane: how long it waits, and how much it takes on at a time."""

from dataclasses import dataclass, field

from dtfm_protocol.transport.handshake_turns import HandshakeRates


@dataclass(frozen=True)
class DirectLimits:
    """The bounds of one direct plane; times are seconds."""

    connect: float = 2.0
    """Seconds for a TCP connection, to all of a peer's addresses at once."""
    handshake: float = 10.0
    """Seconds for each of what follows until a stream is open: the first bytes, TLS and the service's name. A busy
    machine is slow to answer."""
    silence: int = 10
    """Seconds, about, for which the kernel keeps a connection that says nothing to itself (Linux). 0: it does not."""
    rates: HandshakeRates = field(default_factory=HandshakeRates)
    """How many handshakes begin with others who have connected."""
    punch: float = 4.0
    """Seconds until a connection from both sides stands, once both know where the other is: a lost request is repeated
    after one second, and after three."""
    pending: int = 256
    """Connections that have not proven who they are yet; with one more, an old one has to go."""
    pending_of_one: int = 96
    """Those of them from one address: peers that share a router come from one, several streams of each at once."""
    peer_streams: int = 64
    """Streams that one peer may have opened here at a time; it needs some ten."""
    meetings: int = 64
    """Connections that others may have this peer open from both sides at once: each takes a few sockets."""
    peer_meetings: int = 8
    """Connections that one peer may have this one open from both sides at once, of all such."""
