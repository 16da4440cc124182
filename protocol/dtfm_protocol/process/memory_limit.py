"""The limit that the system sets on a process's memory: an allocation above it fails, whoever asks for it (Linux)."""

import resource
import sys
from pathlib import Path

MARGIN_BYTES = 2 << 30
"""Bytes that a process may take beside what it offers: libraries, buffers, and threads' stacks, which count in full."""
TIMES_OFFERED = 2
"""Between two plans a peer holds the state of the one before and of the one to come."""


def most_data(now: int, offered: float, available: int) -> int:
    """Return the bytes of data to which a process is held that has `now` bytes and offers `offered` more for training.

    Args:
        available: bytes that are free on the machine.
    """
    return now + max(MARGIN_BYTES, min(int(TIMES_OFFERED * offered) + MARGIN_BYTES, available))


def data_bytes() -> int | None:
    """Return this process's private writable memory in bytes, as the limit counts it; None where nobody says."""
    if not sys.platform.startswith("linux"):
        return None
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    sizes = [int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")]
    return sizes[0] if sizes else None


def hold_data_to(most: int) -> None:
    """Have the system refuse this process, and those that it starts from now on, data above `most` bytes each.

    What is mapped from files, shared, or on an accelerator does not count. It cannot be undone.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
