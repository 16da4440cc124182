"""Look for a GPU before the slow imports: what the machine itself tells, without torch."""

import platform
import subprocess
import sys
from collections.abc import Sequence

from dtfm_protocol.bounds import printable

NVIDIA = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
LOOK_SECONDS = 5.0
"""Seconds after which a driver that does not answer counts as none."""


def gpu_here(command: Sequence[str] = NVIDIA) -> str:
    """Return the name of this machine's first GPU; "": none was found. Whether torch can use it is another question.

    Args:
        command: prints the names of NVIDIA's GPUs, one a line.
    """
    if sys.platform == "darwin":
        return "of this Mac" if platform.machine() == "arm64" else ""
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=LOOK_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = said.stdout.strip().splitlines()
    return printable(lines[0].strip().removeprefix("NVIDIA ")) if lines and not said.returncode else ""
