"""`dtfm-node status`: says what the node of a state folder is doing, or was doing last."""

import json
import time
from pathlib import Path
from typing import Any

import typer

from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError
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


def show_status(values: dict[str, Any]) -> None:
    """Print what `read_status` returns, for people."""
    age = time.time() - values["at"]
    typer.echo("The node is running." if values["running"] else f"The node is not running (last seen {age:.0f} s ago).")
    for words in values.get("words", ()):
        typer.echo(printable(words))
    if values.get("version"):
        coordinator = printable(values.get("coordinator_version", "")) or "not known yet"
        typer.echo(f"Version {values['version']}; the coordinator's: {coordinator}.")
    if values["timeouts"]:
        from dtfm_node.control.display import show_timeouts

        show_timeouts(values["timeouts"])
