"""Rules of the embedded broker: who may write and read which topics of the swarm, and how much."""

from collections.abc import Collection
from dataclasses import dataclass

from dtfm_protocol.control.messages import CHALLENGE, REPORT, TOPICS, Topic
from dtfm_protocol.errors import Cause, Refused

COORDINATORS_READ = frozenset({REPORT.name})
"""Topics of peers that coordinators alone read."""
OWNER_READS = frozenset({CHALLENGE.name})
"""Topics of peers that, beside coordinators, each peer reads of itself alone."""


@dataclass(frozen=True)
class TopicRules:
    """The rules for the topics of one swarm."""

    swarm: str
    coordinators: Collection[str]
    """Peer ids that may write the coordinator's topics."""

    def check_message(self, peer: str, topic: str, size: int, *, retain: bool) -> Topic:
        """Return the kind of a message of `size` bytes that `peer` writes to `topic`.

        Raises:
            Refused: there is no such topic, it is not that peer's to write, or the message is too large, empty, or to
                be kept where none is.
        """
        kind, owner = self._split(topic)
        if kind.author == "coordinator" and peer not in self.coordinators:
            raise Refused(f"a message on {kind.name}, which coordinators alone write")
        if kind.author == "peer" and owner != peer:
            raise Refused(f"a message on {kind.name} of another peer")
        if retain and not kind.retained:
            raise Refused(f"a message on {kind.name} that is to be kept")
        if size > kind.limit:
            raise Refused(f"a message of {size} bytes on {kind.name}, more than {kind.limit}", Cause.SIZE)
        if not size:  # which would clear what is kept
            raise Refused(f"an empty message on {kind.name}")
        return kind

    def check_filter(self, peer: str, topic: str) -> None:
        """Check that `peer` may read `topic`, a topic or, for the topics of all peers, one that ends in `/+`.

        Raises:
            Refused: it may not.
        """
        kind, owner = self._split(topic)
        if peer in self.coordinators:
            return
        if kind.name in COORDINATORS_READ or (kind.name in OWNER_READS and owner != peer):
            raise Refused(f"a request for {kind.name}, which is not for it to read")

    def most_bytes(self, peer: str) -> int:
        """Return the bytes of the largest message that `peer` may write on any topic."""
        is_coordinator = peer in self.coordinators
        return max(topic.limit for topic in TOPICS.values() if is_coordinator or topic.author == "peer")

    def _split(self, topic: str) -> tuple[Topic, str]:
        """Return the kind of a topic, and whose it is ("": no peer's). Raises Refused where there is no such topic."""
        root, swarm, name, *owner = topic.split("/")[:5] if topic.count("/") >= 2 else ("", "", "")
        kind = TOPICS.get(name)
        if (root, swarm) != ("dtfm", self.swarm) or kind is None or len(owner) != (kind.author == "peer"):
            raise Refused(f"a topic that this swarm does not have: {topic[:80]!r}")
        if owner and not (owner[0] == "+" or owner[0].isalnum()):
            raise Refused("a topic of what is no peer")
        return kind, owner[0] if owner else ""
