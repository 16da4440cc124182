"""Work in a process of its own: it may take long, or hang in a driver with Python's lock held, and must be endable."""

import asyncio
import contextlib
import json
import signal
import sys
from typing import Any

from dtfm_protocol.process.child_processes import end_with_parent

GONE_SECONDS = 1.0
"""For a killed process to be gone; one that a driver holds is left to it."""


async def answer(module: str, asked: str) -> dict[str, Any]:
    """Return the JSON object that `module`, run as a program, writes to standard output when it reads `asked`.

    The process ends where this is cancelled.

    Raises:
        OSError: it cannot be started, or has ended without an answer.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # Ctrl+C is this side's to handle
        preexec_fn=end_with_parent(signal.SIGKILL),
    )  # fmt: skip
    try:
        said, _ = await process.communicate(asked.encode())
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GONE_SECONDS):
                    await process.wait()
    if process.returncode:
        raise OSError(f"the process that works it out has ended with code {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found
