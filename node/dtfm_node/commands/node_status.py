"""`dtfm-node status`: says what the node of a state folder is doing, or was doing last."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import time_in_words
from dtfm_protocol.process.state_dir import is_live


def read_status(folder: Path) -> dict[str, Any]:
    """Return what the node of a state folder has written of itself, and whether it runs (`running`).

    Raises:
        UserError: it has written nothing.
    """
    path = folder / "status.json"
    if not path.exists():
        raise UserError(f"{folder} holds no node's status: did `dtfm-node join` run with it?")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values | {"running": is_live(folder)}


def show_status(values: dict[str, Any], *, verbose: bool = False) -> None:
    """Print what `read_status` returns, for people; `verbose`: with how long it waits for each peer."""
    print("\n".join(status_lines(values, time.time())))
    if verbose and values["timeouts"]:
        from dtfm_node.control.display import show_timeouts

        show_timeouts(values["timeouts"])


def status_lines(values: Mapping[str, Any], now: float) -> list[str]:
    """Return what `read_status` returns, in lines for people; `now` in Unix seconds."""
    told = [printable(str(words)) for words in values.get("words", ())]
    if values["running"]:
        lines = ["The node is running.", *told]
    elif values["state"] == "finished":
        lines = ["The node is not running.", *told]
    else:
        lines = [f"The node is not running; {_ago(now - values['at'])} ago it said:", *(f"  {words}" for words in told)]
    if values.get("allowed"):
        lines.append(f"You allow: {printable(values['allowed'])}.")
    if values.get("version"):
        coordinator = printable(values.get("coordinator_version", "")) or "not known yet"
        lines.append(f"Version {values['version']}; the coordinator's: {coordinator}.")
    return lines


def _ago(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s" if seconds < 100 else time_in_words(seconds)
