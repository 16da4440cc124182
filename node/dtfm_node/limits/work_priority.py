"""Priority of this process for the processor and the disk, the lowest unless its person wants another."""

import contextlib
import os

import psutil

from dtfm_protocol.process.logs import log


def lower_priority(nice: int) -> None:
    """Have the system give this process, and all that it starts, what others leave over.

    To be called before the process has threads: on Linux each has a priority of its own, and takes over that of the
    thread that starts it.

    Args:
        nice: from 0, which leaves it as it is, to 19, the lowest; from 10 on its disk access, too, waits for that of
            others (Linux).
    """
    if nice == 0:
        return
    try:
        if hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        elif nice >= 10:  # Windows
            psutil.Process().nice(getattr(psutil, "IDLE_PRIORITY_CLASS", None))
    except (OSError, psutil.Error) as error:
        log.warning("this process keeps its priority: %s", error)
    if nice >= 10 and hasattr(psutil, "IOPRIO_CLASS_IDLE"):
        with contextlib.suppress(psutil.Error, OSError):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
