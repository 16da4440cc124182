"""Message router of the embedded broker: who is to get a message, and which messages are kept for those to come."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from dtfm_coordinator.serve.mqtt_packets import Publication

S = TypeVar("S")

MOST_KEPT = 4096
"""Messages that are kept; of peers that are gone the oldest ones go first."""


class MessageRouter(Generic[S]):
    """Subscriptions of sessions, and the last message of each topic that keeps one.

    It believes that topics and filters have been checked: a filter is a topic, or one that ends in `/+`.
    """

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        """Route for nobody yet.

        Args:
            most_kept: messages that are kept at most, more than there are ever sessions.
        """
        self.kept: dict[str, Publication] = {}
        """Last messages of topics that keep one."""
        self._most_kept = most_kept
        self._readers: dict[str, dict[S, None]] = {}
        self._filters: dict[S, set[str]] = {}

    def subscribe(self, session: S, filters: Iterable[str]) -> list[Publication]:
        """Let `session` have the messages of `filters` from now on; return those that are kept."""
        wanted = dict.fromkeys(filters)
        for name in wanted:
            self._readers.setdefault(name, {})[session] = None
            self._filters.setdefault(session, set()).add(name)
        found = {topic: message for name in wanted for topic, message in self._kept_for(name)}
        return list(found.values())

    def unsubscribe(self, session: S, filters: Iterable[str]) -> None:
        """Let `session` have no more messages of `filters`; unknown ones do not count."""
        for name in filters:
            self._filters.get(session, set()).discard(name)
            readers = self._readers.get(name, {})
            readers.pop(session, None)
            if not readers:
                self._readers.pop(name, None)

    def leave(self, session: S) -> None:
        """Forget a session."""
        self.unsubscribe(session, list(self._filters.get(session, ())))
        self._filters.pop(session, None)

    def publish(self, message: Publication, is_here: Callable[[str], bool] = lambda peer: False) -> list[S]:
        """Keep a message if it is to be kept, and return the sessions that are to get it.

        Args:
            is_here: whether a peer is connected, whose kept message is not dropped to make room.
        """
        if message.retain:
            if message.topic not in self.kept and len(self.kept) >= self._most_kept:
                self._drop_one(is_here)
            self.kept[message.topic] = Publication(message.topic, message.payload, True)
        all_peers = f"{message.topic.rpartition('/')[0]}/+"
        return list({**self._readers.get(message.topic, {}), **self._readers.get(all_peers, {})})

    def _kept_for(self, name: str) -> list[tuple[str, Publication]]:
        if not name.endswith("/+"):
            return [(name, self.kept[name])] if name in self.kept else []
        return [(topic, message) for topic, message in self.kept.items() if topic.startswith(name[:-1])]

    def _drop_one(self, is_here: Callable[[str], bool]) -> None:
        """Drop the oldest message of a peer that is gone, and never a coordinator's own."""
        of_peers = (topic for topic in self.kept if topic.count("/") > 2)
        gone = next((topic for topic in of_peers if not is_here(topic.rpartition("/")[2])), "")
        self.kept.pop(gone, None)
