"""Whether a node that has ended is started again, and when. Pure."""

import signal
from typing import NamedTuple, Self

from dtfm_protocol.process.command_line import EXIT_INTERRUPT, EXIT_USER

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds before a node that has failed is started again: the first time, and at most; they double."""
STEADY_SECONDS = 600.0
"""Seconds of a life after which the next failure counts as the first one."""
REFUSED_SECONDS = 60.0
"""Seconds within which a node that ends with a fault of the user's was refused: to start it again would not help."""
ASKED = (EXIT_INTERRUPT, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""Exit codes of a node that was asked to leave."""


class Ended(NamedTuple):
    """What becomes of a node that has ended."""

    again_after: float | None
    """Seconds until it is started again; None: it is not."""
    words: str
    """What happened, for people; what the node said last may follow."""
    is_fault: bool = False
    """Whether it does not take part because something is wrong."""


class Restarts(NamedTuple):
    """Restarts of one node."""

    pause: float = FIRST_PAUSE
    """Seconds until it is started again, should it fail."""

    def ended(self, code: int, lived: float) -> tuple[Self, Ended]:
        """Return the state after the node has ended with exit code `code` (negative: by a signal) after `lived`
        seconds, and what is to become of it."""
        if code == 0:
            return self, Ended(None, "has finished")
        if code in ASKED:
            return self, Ended(None, "has left")
        if code == EXIT_USER and lived < REFUSED_SECONDS:
            return self, Ended(None, "does not take part", is_fault=True)
        pause = FIRST_PAUSE if lived >= STEADY_SECONDS else self.pause
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        words = f"{how}; it is started again in {pause:.0f} s"
        return self._replace(pause=min(LONGEST_PAUSE, 2 * pause)), Ended(pause, words, is_fault=True)
