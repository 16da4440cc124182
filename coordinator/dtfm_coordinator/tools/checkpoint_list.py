"""`dtfm-coordinator checkpoints`: which checkpoints of a run there are, and which of them are kept for good."""

import time
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from dtfm_coordinator.tools.export import CHECKPOINTS
from dtfm_protocol.bounds import printable
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.console import console
from dtfm_protocol.process.quantities import bytes_in_words


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint in a coordinator's state folder."""

    step: int
    at: float | None
    """Unix seconds when it was written; None: not known, as it is damaged."""
    bytes: int
    loss: float | None
    """Loss of its step in training; None where that is not known."""
    eval_loss: float | None
    """Loss on the evaluation's text; None where its step was not evaluated."""
    for_good: bool
    """Whether it is never deleted."""
    fault: str = ""
    """Why it cannot be used; "": it can, as far as its files' sizes tell."""


def checkpoints_of(state_dir: Path) -> list[ListedCheckpoint]:
    """Return the checkpoints of a run, oldest first.

    Raises:
        UserError: the folder cannot be read.
    """
    store, found = _store(state_dir), []
    for_good = store.kept_for_good()
    rows = {row.step: row for row in MetricsFile(state_dir / "metrics.jsonl").rows()}
    for step in store.steps():
        loss = rows[step].loss if step in rows else None
        try:
            manifest, at = store.described(step)
        except Refused as error:
            found.append(ListedCheckpoint(step, None, 0, loss, None, step in for_good, str(error)))
            continue
        total = sum(file.bytes for file in manifest.files)
        found.append(ListedCheckpoint(step, at, total, loss, manifest.eval_loss, step in for_good))
    return found


def show(listed: list[ListedCheckpoint]) -> None:
    """Print checkpoints for people."""
    if not listed:
        console().print("there is no checkpoint yet")
        return
    table = Table("step", "written", "size", "loss", "eval loss", "kept")
    for one in listed:
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at)) if one.at is not None else ""
        losses = ("" if loss is None else f"{loss:.4f}" for loss in (one.loss, one.eval_loss))
        kept = "for good" if one.for_good else "until newer ones come"
        table.add_row(
            str(one.step),
            written,
            bytes_in_words(one.bytes),
            *losses,
            kept if not one.fault else f"damaged: {one.fault}",
        )
    for column in (0, 2, 3, 4):
        table.columns[column].justify = "right"
    console().print(table)


def keep(state_dir: Path, step: int, *, kept: bool) -> str:
    """Have the checkpoint of `step` never deleted, or, where it is not to be `kept`, as any other; return what was
    done, in words for people.

    Raises:
        UserError: there is no such checkpoint, it is damaged, or nothing can be written.
    """
    store = _store(state_dir)
    _check(store, step)
    store.keep_for_good(step, kept=kept)
    if not kept:
        return f"the checkpoint of step {step} is deleted once two newer ones are there"
    try:
        _check(store, step)  # it may have been deleted just before it was marked
    except UserError:
        store.keep_for_good(step, kept=False)
        raise
    return f"the checkpoint of step {step} is kept for good; `--undo` lets it go again"


def _check(store: CheckpointStore, step: int) -> None:
    if step not in store.steps():
        there = ", ".join(map(str, store.steps())) or "none"
        raise UserError(f"there is no checkpoint of step {step} (there are: {there})")
    try:
        store.described(step)
    except Refused as error:
        raise UserError(f"the checkpoint of step {step} cannot be used: {printable(str(error))}") from None


def _store(state_dir: Path) -> CheckpointStore:
    """Return the store to read, beside a coordinator that may run.

    Raises:
        UserError: there is no such folder.
    """
    if not state_dir.is_dir():
        raise UserError(f"there is no state folder {state_dir}: name the one that `dtfm-coordinator serve` was given")
    return CheckpointStore(state_dir / CHECKPOINTS, sweep=False)
