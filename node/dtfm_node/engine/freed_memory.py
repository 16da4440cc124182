"""Freed memory that this process still holds: given back to the system where it holds more than its work takes.

The C library's allocator on Linux (glibc) seldom refills the hole that a freed tensor leaves: torch's are aligned to 64
bytes, for which it looks for a larger one. So with many micro-batches in flight a process grows from action to action.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from dtfm_protocol.process.clock import MonotonicClock

LOOK_SECONDS = 0.05
"""Seconds between two looks at what the process holds, at least."""


class FreedMemory:
    """Freed memory of the process, of which `give_back` is told after each action that frees tensors.

    Trimmed is only what grows: a mark stands at the most that was held right after a trim, or at the first look after
    one. What an action takes for itself is thus not given back after it, to be asked for again by the next; and as each
    mark is of a process that has just been trimmed, it cannot follow holes upwards.
    """

    def __init__(
        self, held: Callable[[], int], trim: Callable[[], object], clock: MonotonicClock | None = None
    ) -> None:
        """Nothing is looked at before the first `give_back`.

        Args:
            held: returns the bytes that the process holds.
            trim: gives all freed memory back to the system.
        """
        self._held, self._trim, self._clock = held, trim, clock or MonotonicClock()
        self._mark = 0
        """Bytes beyond which it is trimmed."""
        self._trimmed = False
        """Whether the look before this one has trimmed."""
        self._next = -float("inf")
        """Time of the clock before which nothing is looked at."""

    @classmethod
    def of_process(cls) -> "FreedMemory | None":
        """Return that of this process; None: its C library, or its system, gives nothing back when asked."""
        trim = _malloc_trim()
        return None if trim is None else cls(own_bytes, trim)

    def give_back(self) -> None:
        """Give it back, where the process has grown; cheap where it has not, or was looked at just before."""
        now = self._clock.now()
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        held = self._held()
        if self._trimmed:
            self._mark, self._trimmed = max(self._mark, held), False
        elif held > self._mark:
            self._trim()
            self._mark, self._trimmed = max(self._mark, self._held()), True


def own_bytes() -> int:
    """Return the bytes of memory that this process holds of its own, without pages of files: Linux only."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared = file.read().split(maxsplit=3)[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _malloc_trim() -> Callable[[], Any] | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    return None if function is None else partial(function, ctypes.c_size_t(0))
