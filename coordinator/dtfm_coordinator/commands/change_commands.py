"""Commands by which the owner changes what a run trains, and begins a new one from it."""

import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtfm_coordinator.commands.option_types import StateDir
from dtfm_coordinator.commands.owner_commands import Wait, ask
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line

if TYPE_CHECKING:
    from dtfm_protocol.job.amendment import Value


def set_values(
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Keys as in the job file.")],
    state_dir: StateDir,
    at: Annotated[int | None, typer.Option(min=1, help="First step of the change; else as soon as can be.")] = None,
    wait: Wait = 120.0,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask where the learning rate jumps far up.")] = False,
) -> None:
    """Change the job while it trains. Learning rate, steps, batch, evaluation, checkpoints, plan."""
    from dtfm_coordinator.owner.amending import described, steep_rise
    from dtfm_coordinator.owner.job_on_disk import JobOnDisk
    from dtfm_coordinator.owner.owner_wishes import Amended
    from dtfm_coordinator.owner.wish_file import WishFile

    with command_line.guarded():
        found = JobOnDisk.of(state_dir)
        wish = Amended(at=time.time(), values=parsed_values(changes), from_step=at)
        if at is not None and at <= found.recorded:
            raise UserError(f"--at {at}: step {found.recorded} is done already: give a later step")
        changed = found.changed(wish)
        rise = "" if yes else steep_rise(found.timeline, changed)
        if rise and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UserError(f"{rise} Nothing was changed: give --yes if it is meant")
        for line in described(found.timeline, changed, is_sure=at is not None):
            typer.echo(line)
        if rise and not typer.confirm(f"{rise} Change it all the same?", err=True):
            typer.echo("Nothing was changed.", err=True)
            raise SystemExit(1)
        now = "the nodes take it up after the step under way"
        if WishFile(state_dir).wishes.is_paused:
            now, wait = "the run is paused: it holds when the run goes on", 0.0
        ask(state_dir, wish, wait, now=now, later="it holds when the run is served again")


def fork(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Job file to write.")],
    run: Annotated[str, typer.Option("--from", metavar="STATE_DIR[@STEP]", help="The run, and a checkpoint of it.")],
) -> None:
    """Begin a new job with the weights of a run's checkpoint. This writes its job file."""
    from dtfm_coordinator.tools.fork import fork as write

    with command_line.guarded():
        step = write(run, job)
        typer.echo(f"wrote {job}, which begins with the weights after step {step}: edit it, then")
        typer.echo(f"  dtfm-coordinator serve {job} --state-dir {job.stem}")


def parsed_values(changes: list[str]) -> "dict[str, Value]":
    """Return the values of `KEY=VALUE` arguments, as the job file would have them.

    Raises:
        UserError: one has no `=`, or its key may not change.
    """
    from dtfm_protocol.job.amendment import check_key

    found: dict[str, Value] = {}
    for change in changes:
        key, equals, text = (part.strip() for part in change.partition("="))
        if not equals or not key:
            raise UserError(f"{change!r}: write KEY=VALUE, as training.learning_rate=1e-4")
        keys = ["plan.wire.activations", "plan.wire.gradients"] if key == "plan.wire" else [key]
        for one in keys:
            check_key(one)
            found[one] = _parsed(text)
    return found


def _parsed(text: str) -> "Value":
    """Return a value as TOML has it; what is none in TOML is a word."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text
