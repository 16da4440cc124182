"""`dtfm-coordinator status`: shows the status of a state dir's coordinator."""

import json
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from dtfm_coordinator.swarm.overview.overview import MemberView, Overview
from dtfm_coordinator.swarm.overview.spoken_numbers import duration, many
from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import called
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.console import console
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.process.state_dir import is_live

NEWS = 5
"""Newest items that are shown."""
STYLES = {"good": "green", "wait": "cyan", "warn": "yellow", "bad": "red", "done": "green"}


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
    """Print a status for people. What nodes say of themselves is shown as it is: it is no markup.

    Raises:
        UserError: another version of the program has written it.
    """
    try:
        overview = Overview.model_validate(values.get("overview"))
    except ValidationError:
        raise UserError(
            "another version of dtfm-coordinator has written this status: start `serve` with this one, or use that one"
        ) from None
    out = console()
    if not values["running"]:
        out.print(Text(f"The coordinator is not running; this is from {duration(time.time() - overview.at)} ago."))
    style = STYLES[overview.health.level]
    out.print(Text.assemble(("● ", style), (printable(overview.health.sentence), "bold")))
    if overview.health.advice:
        out.print(Text(f"  {printable(overview.health.advice)}"))
    _show_figures(overview)
    _show_members(overview)
    for item in list(overview.news.values())[-NEWS:]:
        clock = time.strftime("%H:%M:%S", time.localtime(item.at))
        advice = f" {item.advice}" if item.advice else ""
        out.print(Text.assemble((f"{clock} ", "dim"), printable(f"{item.text}{advice}")))


def _show_figures(overview: Overview) -> None:
    progress, figures = overview.progress, overview.figures
    parts, so_far = list[str](), list[str]()
    if figures.loss is not None:
        parts.append(f"loss {figures.loss:.4f}")
    if figures.eval_loss is not None:
        parts.append(f"eval loss {figures.eval_loss:.4f} after step {figures.eval_step:,}")
    parts += [f"{one.name} {one.loss:.4f}" for one in figures.sets]
    if progress.step_seconds is not None:
        predicted = f" (planned {duration(figures.predicted_seconds)})" if figures.predicted_seconds else ""
        parts.append(f"a step takes {duration(progress.step_seconds)}{predicted}")
    if figures.tokens_per_second is not None:
        parts.append(f"{figures.tokens_per_second:,.0f} tokens/s")
    if progress.tokens:
        so_far.append(f"{many(progress.tokens)} tokens so far")
    newest = next(iter(overview.storage.checkpoints), None)
    if newest is not None:
        so_far.append(f"checkpoint of step {newest.step:,} ({bytes_in_words(newest.size)})")
    if overview.version:
        so_far.append(f"dtfm {overview.version}")
    for line in filter(None, (parts, so_far)):
        console().print(Text(", ".join(line)))
    if figures.pace:
        console().print(Text(printable(figures.pace)))


def _show_members(overview: Overview) -> None:
    here = {peer: one for peer, one in overview.members.items() if one.role != "gone"}
    if not here:
        return
    table = Table("member", "what it does", "step", "share", "device", "version")
    for peer, one in here.items():
        table.add_row(
            Text(_named(peer, one)), Text(printable(one.does), style=STYLES[one.level]), str(one.step),
            f"{one.share:.0%}", Text(printable(one.device or "not measured yet")),
            Text(printable(one.version or "not said"), style="" if one.version == overview.version else "yellow"),
        )  # fmt: skip
    console().print(table)


def _named(peer: str, member: MemberView) -> str:
    return printable(called(peer, member.name))
