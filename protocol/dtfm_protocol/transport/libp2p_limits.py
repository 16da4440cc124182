"""The limits of a libp2p plane: how long it waits for proof, and how much it takes on at a time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StreamLimits:
    """The bounds of one libp2p plane; times are seconds."""

    proof: float = 10.0
    """Seconds in which whoever opens a stream has to show its credential. A busy machine is slow to answer."""
    pending: int = 128
    """Streams on which no credential was shown yet; with one more, an old one has to go."""
    pending_of_one: int = 48
    """Those of them from one address."""
    peer_streams: int = 64
    """Streams that one peer may have opened here at a time; it needs some ten."""
    peer_calls: int = 32
    """Calls of one peer that are answered at a time."""
    news: float = 10.0
    """Interval at which members are asked who is banned, where nothing is new."""
    look: float = 2.0
    """Interval of looks at who is connected to the daemon."""
    glance: float = 0.25
    """Interval of looks at how much memory the daemon has, which anybody can make it take: it has no limits itself."""
    daemon_memory: int = 384 << 20
    """Bytes of memory with which the daemon is left in peace: it has some 60 MB, and more with many members; above,
    nobody stays connected who has not shown a credential."""
    strangers: int = 128
    """Peers that are connected to the daemon and have not shown a credential; with one more, an old one has to go."""
    strangers_of_one: int = 48
    """Those of them from one address."""
    patience: float = 15.0
    """Seconds for which such a peer stays connected, in which it is asked for its credential."""
