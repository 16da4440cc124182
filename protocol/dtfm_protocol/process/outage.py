"""An outage of something that is tried again and again, and when that is worth a line of the log. Pure but for a clock.

The first failure is said at once, further ones ever more rarely, and the return once.
"""

import time
from collections.abc import Callable

from dtfm_protocol.process.quantities import time_in_words

FIRST_PAUSE_SECONDS = 60.0
"""Seconds after the first line until a second one is worth it; twice as long before each further one."""
LONGEST_PAUSE_SECONDS = 6 * 3600.0


class Outage:
    """The outage of one thing: fed with each failure and each success, it returns the line to log, or ""."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """All is well; `clock` gives seconds."""
        self._clock = clock
        self._since: float | None = None
        self._due = self._pause = 0.0

    def fails(self, what: str) -> str:
        """Return the line after another failure; `what` says what fails, and why."""
        now = self._clock()
        if self._since is None:
            self._since, self._pause = now, FIRST_PAUSE_SECONDS
            self._due = now + self._pause
            return f"{what}; trying again"
        if now < self._due:
            return ""
        self._pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pause)
        self._due = now + self._pause
        return f"{what}; still trying, for {time_in_words(now - self._since)} now"

    def ends(self, what: str) -> str:
        """Return the line after a success, if there was an outage before; `what` says what works again."""
        if self._since is None:
            return ""
        lasted, self._since = self._clock() - self._since, None
        return f"{what} again, after {time_in_words(lasted)}"
