"""`dtfm-node leave`: asks the daemon of a state dir to drain, and waits until it has ended."""

import contextlib
import os
import signal
import time
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import holder, is_live

LEFT_LOOK_SECONDS = 0.1


def leave(state_dir: Path, timeout: float) -> str:
    """Ask the daemon of `state_dir` to leave, wait for at most `timeout` seconds, and return what happened in a line.

    Raises:
        UserError: no node runs there, or it has not ended in time.
    """
    process = holder(state_dir) if is_live(state_dir) else None
    if process is None:
        raise UserError(f"no node runs with the state dir {state_dir}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    end = time.monotonic() + timeout
    while is_live(state_dir):
        if time.monotonic() >= end:
            raise UserError(
                f"the node {process} has not left in {timeout:g} s: it waits until others have what it holds; "
                "run this again to have it leave at once"
            )
        time.sleep(LEFT_LOOK_SECONDS)
    return "left: what this node held, others have, or its state dir keeps"
