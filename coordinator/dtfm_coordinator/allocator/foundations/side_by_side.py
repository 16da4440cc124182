"""Searches side by side on this machine's cores: their compiled loops let go of the interpreter, so threads will do."""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

NICE = 10
"""Niceness of all threads but the first, on Linux: they take what other programs leave."""
MOST_CORES = 16
"""Cores that a search uses at most: what it keeps is looked at by one thread at a time."""


def all_cores() -> int:
    """Return the number of cores that a search on this machine may use."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_CORES, here)


def side_by_side(work: Callable[[int], None], count: int) -> None:
    """Call `work` with 0 on this thread, and with 1 to `count` - 1 on threads beside it; return when all have."""
    if count == 1:
        work(0)
        return
    with ThreadPoolExecutor(count - 1, thread_name_prefix="search") as pool:
        others = [pool.submit(_beside, work, number) for number in range(1, count)]
        work(0)
    for other in others:
        other.result()


def _beside(work: Callable[[int], None], number: int) -> None:
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        with contextlib.suppress(OSError):  # elsewhere than on Linux no thread has a niceness of its own
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
    work(number)
