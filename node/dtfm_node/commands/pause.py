"""`dtfm-node pause` and `dtfm-node resume`: say to the node of a state folder that it is to pause, or to go on."""

import json
import time
from pathlib import Path

from dtfm_node.limits.pause_order import PauseOrder, read_order, write_order
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import is_live

LOOK_SECONDS = 0.1


def pause(state_dir: Path, seconds: float | None, timeout: float, *, at_once: bool) -> str:
    """Have the node pause, wait for at most `timeout` seconds until it does, and return what happened in a line.

    Args:
        state_dir: its state folder.
        seconds: how long it is to pause; None: until `resume`.
        timeout: seconds to wait.
        at_once: whether it waits for nobody.

    Raises:
        UserError: no node runs there, or its folder cannot be written to.
    """
    if not is_live(state_dir):
        raise UserError(f"no node runs with the state dir {state_dir}")
    begun = time.time()
    order = PauseOrder(until=None if seconds is None else begun + seconds, at_once=at_once)
    write_order(state_dir, order)
    words, end = f"paused {order.words(begun)}", time.monotonic() + timeout
    while not _is_paused(state_dir, begun):
        if not is_live(state_dir):
            raise UserError(f"the node of {state_dir} has ended; it is {words} when it is started again")
        if time.monotonic() >= end:
            return f"it will be {words}: it still waits until others have what it holds (--now does not wait)"
        time.sleep(LOOK_SECONDS)
    return words


def resume(state_dir: Path) -> str:
    """Have the node go on, and return what happened in a line.

    Raises:
        UserError: it was not paused, or its folder cannot be written to.
    """
    if read_order(state_dir) is None:
        raise UserError(f"the node of {state_dir} was not paused by `dtfm-node pause`; `dtfm-node status` says more")
    write_order(state_dir, None)
    return "it goes on" if is_live(state_dir) else "it goes on when it is started again"


def _is_paused(state_dir: Path, since: float) -> bool:
    """Whether the node has said, since a time in Unix seconds, that it pauses."""
    try:
        status = json.loads((state_dir / "status.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(status.get("state") == "paused" and status.get("at", 0.0) >= since)
