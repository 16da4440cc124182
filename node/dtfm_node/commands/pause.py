"""`dtfm-node pause` and `dtfm-node resume`: say to the node of a state folder that it is to pause, or to go on."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dtfm_node.limits.pause_order import PauseOrder, read_order, write_order
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import is_live

LOOK_SECONDS = 0.1


def pause_all(nodes: Sequence[Path], seconds: float | None, timeout: float, *, at_once: bool) -> Iterator[str]:
    """Have all nodes of these state folders pause, and yield what happened to each that runs; see `pause`.

    Raises:
        UserError: none of them runs, or a folder cannot be written to.
    """
    if len(nodes) == 1:
        yield pause(nodes[0], seconds, timeout, at_once=at_once)
        return
    running = [node for node in nodes if is_live(node)]
    if not running:
        raise UserError(f"no node runs with a folder in {nodes[0].parent}")
    begun, end = time.time(), time.monotonic() + timeout
    order = _order(begun, seconds, at_once=at_once)
    for node in running:  # all hear of it before the first is waited for
        write_order(node, order)
    for node in running:
        yield f"{node.name}: {_paused(node, order, begun, end)}"


def resume_all(nodes: Sequence[Path]) -> Iterator[str]:
    """Have all nodes of these state folders go on that were paused, and yield what happened to each of them.

    Raises:
        UserError: none was paused, or a folder cannot be written to.
    """
    if len(nodes) == 1:
        yield resume(nodes[0])
        return
    paused = [node for node in nodes if read_order(node) is not None]
    if not paused:
        raise UserError("no node was paused by `dtfm-node pause`; `dtfm-node status` says more")
    for node in paused:
        yield f"{node.name}: {resume(node)}"


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
    begun, end = time.time(), time.monotonic() + timeout
    order = _order(begun, seconds, at_once=at_once)
    write_order(state_dir, order)
    return _paused(state_dir, order, begun, end)


def _order(begun: float, seconds: float | None, *, at_once: bool) -> PauseOrder:
    return PauseOrder(until=None if seconds is None else begun + seconds, at_once=at_once)


def _paused(state_dir: Path, order: PauseOrder, begun: float, end: float) -> str:
    """Wait until the node pauses, or `time.monotonic()` is `end`, and return what happened in a line."""
    words = f"paused {order.words(begun)}"
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
