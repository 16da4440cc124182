"""Account of what peers said that they hold and do not, or may not: counted, and said once a peer and reason."""

import logging
from collections import Counter
from collections.abc import Iterable

from dtfm_coordinator.plan_change.judged_holdings import Refusal
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log


class RefusedClaims:
    """Claims that were not believed, by peer."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Number of refusals, by peer id; those of peers beyond `SEEN_LIMIT` under ""."""
        self._said: set[tuple[str, str]] = set()

    def note(self, refusals: Iterable[Refusal]) -> None:
        """Count refusals, and log those of which nothing was said yet."""
        for refusal in refusals:
            known = refusal.peer in self.counts or len(self.counts) < SEEN_LIMIT
            self.counts[refusal.peer if known else ""] += 1
            what = (refusal.peer, refusal.why)
            if what not in self._said and len(self._said) < SEEN_LIMIT:
                self._said.add(what)
                log.log(
                    logging.DEBUG if refusal.is_usual else logging.WARNING,
                    "What %s holds is not used: %s, %s",
                    short(refusal.peer),
                    refusal.what,
                    refusal.why,
                )
