"""Commands on the checkpoints of a run: list them, export one, keep one for good."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dtfm_coordinator.commands.option_types import Json, Merge, StateDir
from dtfm_protocol.process import command_line

checkpoints = typer.Typer(
    help="List a run's checkpoints, export one, or keep one for good.", no_args_is_help=True, rich_markup_mode=None
)
Step = Annotated[int, typer.Argument(min=1, help="The checkpoint's step, as `checkpoints list` shows it.")]


@checkpoints.command("list")
def list_checkpoints(state_dir: StateDir, as_json: Json = False) -> None:
    """List the checkpoints: step, time, size, losses, and whether they stay."""
    with command_line.guarded():
        from dtfm_coordinator.tools.checkpoint_list import checkpoints_of, show

        listed = checkpoints_of(state_dir)
        if as_json:
            typer.echo(json.dumps([asdict(one) for one in listed]))
        else:
            show(listed)


@checkpoints.command("export")
def export_checkpoint(
    step: Step, state_dir: StateDir, out: Annotated[Path, typer.Argument(help="Folder to make.")], merge: Merge = False
) -> None:
    """Write the checkpoint of a step as a folder that transformers loads."""
    with command_line.guarded():
        from dtfm_coordinator.tools.export import export

        export(state_dir, out, step, merge=merge)
        typer.echo(f"wrote the model after step {step} to {out}")


@checkpoints.command("keep")
def keep_checkpoint(
    step: Step,
    state_dir: StateDir,
    undo: Annotated[bool, typer.Option("--undo", help="Let it go again.")] = False,
) -> None:
    """Keep the checkpoint of a step for good: newer ones do not replace it."""
    with command_line.guarded():
        from dtfm_coordinator.tools.checkpoint_list import keep

        typer.echo(keep(state_dir, step, kept=not undo))
