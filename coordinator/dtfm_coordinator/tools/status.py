"""`dtfm-coordinator status`: shows the status of a state dir's coordinator."""

import json
import time
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dtfm_protocol.bounds import nickname, printable
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import called
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.console import console
from dtfm_protocol.process.state_dir import is_live


def read(state_dir: Path) -> dict[str, Any]:
    """Return the last status of the coordinator of `state_dir`, whether it runs, and the newest metrics row.

    Raises:
        UserError: no coordinator has run there.
    """
    path = state_dir / "status.json"
    if not path.exists():
        raise UserError(f"{state_dir} holds no coordinator's status: did `dtfm-coordinator serve` run with it?")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = MetricsFile(state_dir / "metrics.jsonl").rows()
    values["last"] = rows[-1].model_dump(mode="json") if rows else None
    values["running"] = is_live(state_dir)
    return values


def show(values: dict[str, Any]) -> None:
    """Print a status for people. What nodes say of themselves is shown as it is: it is no markup."""
    out = console()
    running = "running" if values["running"] else f"not running, last seen {time.time() - values['at']:.0f} s ago"
    out.print(Text.assemble((values["phase"], "bold"), printable(f" ({running}): {values['text']}")))
    last = values["last"]
    if last is not None:
        predicted = f", predicted {last['predicted_seconds']:.2f} s" if last["predicted_seconds"] else ""
        out.print(
            f"step {values['step']} of {values['steps']}: loss {last['loss']:.4f}, {last['seconds']:.2f} s{predicted}, "
            f"{last['tokens'] / max(last['seconds'], 1e-9):.0f} tokens/s; checkpoint of step {values['checkpoint']}"
        )
    if not values["nodes"]:
        return
    table = Table("node", "state", "stage", "micro-batches", "step", "device")
    for node in values["nodes"]:
        stage = "idle" if node["stage"] is None else str(node["stage"] + 1)
        name = called(printable(node["id"]), nickname(node.get("name") or ""))
        table.add_row(
            name, node["state"] or "joining", stage, str(node["micro_batches"]), str(node["step"] or 0),
            printable(node["device"] or "measuring"),
        )  # fmt: skip
    out.print(table)
