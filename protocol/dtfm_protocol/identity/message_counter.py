"""Counter of the messages that one identity has signed: it grows with each, over restarts too."""

import contextlib
import time
from collections.abc import Callable

from dtfm_protocol.errors import UserError

BLOCK = 1 << 20
"""Numbers that are reserved on the disk at a time: a crash loses those that were not used, and repeats none."""
TICKS = 1_000_000
"""Numbers for each second of the clock: more than anybody signs."""


class MessageCounter:
    """A counter whose numbers never repeat, though a disk may be restored to what it was, or a clock be set back.

    Numbers begin no lower than those that an earlier run has reserved, and no lower than the microseconds of the
    machine's clock. Where both have gone back, the counter is mended as soon as this identity hears a message of its
    own that has a higher number (`passed`).
    """

    def __init__(
        self,
        reserved: int = 0,
        reserve: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Reserve the first block.

        Args:
            reserved: the number below which an earlier run may have used all.
            reserve: writes such a number down so that it outlives a crash; raises UserError where it cannot.
            clock: Unix seconds.

        Raises:
            UserError: there is no room on the disk.
        """
        self._reserve = reserve
        self._next = max(reserved, int(clock() * TICKS), 1)
        self._end = self._next + BLOCK
        reserve(self._end)

    def take(self) -> int:
        """Return the next number, from 1."""
        number = self._next
        self.passed(number)
        return number

    def passed(self, number: int) -> None:
        """Go on after `number`: it is used."""
        self._next = max(self._next, number + 1)
        if self._next >= self._end:
            self._end = self._next + BLOCK
            with contextlib.suppress(UserError):  # a full disk: the clock alone keeps the next run from repeating these
                self._reserve(self._end)
