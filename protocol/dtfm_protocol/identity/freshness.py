"""Freshness: whether a message is newer than what its sender has said before, so that a replay tells nothing. Pure.

Every envelope has its sender's counter, which grows with each. Of one sender and kind only what is newer counts, with
three rules beside:

- the newest message may be heard again, as a broker keeps it or delivers it twice: it is no news
- a last will is signed when a connection begins and published when it breaks. It counts unless the sender has said
  hello again over a later connection: a hello has the number of its own connection's will with it
- of DHT records, which lie on many peers, the newest may be read any number of times
"""

from collections.abc import Mapping

from dtfm_protocol.errors import Cause, Refused

MOST_SENDERS = 4096
"""Senders that are remembered; beyond it those that were heard least lately are forgotten, as anybody can make keys."""
_GONE, _WILL = "gone", "will"
"""Kinds under which the newest goodbye or will of a sender is remembered, and the will that its newest hello names."""


class Freshness:
    """The greatest counter that was heard of each sender, by kind of message."""

    def __init__(self, known: Mapping[str, Mapping[str, int]] | None = None) -> None:
        """Begin with what an earlier run has `known`, by sender and kind: the newest of it may be heard once more."""
        self._known = {sender: dict(kinds) for sender, kinds in (known or {}).items()}
        self._heard: dict[str, set[str]] = {}
        """Kinds of which the newest message was heard in this run, by sender."""

    @property
    def known(self) -> dict[str, dict[str, int]]:
        """The greatest counters, by sender and kind."""
        return self._known

    def admit(self, sender: str, kind: str, counter: int, *, again: bool = False) -> bool:
        """Return whether a message is news; False: it is the newest one, which was heard before.

        Args:
            again: whether the newest one counts as news each time.

        Raises:
            Refused: a newer one was heard before it.
        """
        before = self._of(sender).get(kind, 0)
        if counter < before:
            raise Refused(f"{kind}: number {counter} after number {before}", Cause.STALE)
        is_news = counter > before or again or kind not in self._heard.get(sender, ())
        self._note(sender, kind, counter)
        return is_news

    def admit_hello(self, sender: str, kind: str, counter: int, will: int) -> bool:
        """Return whether a word of presence is news, as `admit`; `will` is the number of its connection's last will.

        Raises:
            Refused: it is older than what was heard, or than the sender's goodbye.
        """
        if counter <= self._of(sender).get(_GONE, 0):
            raise Refused(f"{kind}: number {counter} from before its sender left", Cause.STALE)
        is_news = self.admit(sender, kind, counter)
        if is_news:
            self._known[sender][_WILL] = will
        return is_news

    def admit_goodbye(self, sender: str, kind: str, counter: int) -> bool:
        """Return whether a goodbye, or a last will, is news.

        Raises:
            Refused: it is the will of an earlier connection than the one over which its sender has said hello last.
        """
        if counter < self._of(sender).get(_WILL, 0):
            raise Refused(f"{kind}: the last will of a connection that is over", Cause.STALE)
        return self.admit(sender, _GONE, counter)

    def _of(self, sender: str) -> dict[str, int]:
        return self._known.get(sender, {})

    def _note(self, sender: str, kind: str, counter: int) -> None:
        kinds = self._known.pop(sender, {})
        kinds[kind] = max(counter, kinds.get(kind, 0))
        self._known[sender] = kinds  # the last in the order, as the one heard most lately
        self._heard.setdefault(sender, set()).add(kind)
        while len(self._known) > MOST_SENDERS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._heard.pop(oldest, None)
