"""Commands on a swarm's state directory: its model, exported or sampled from, what is going on, and a report."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dtfm_coordinator.commands.option_types import Json, Merge, StateDir
from dtfm_protocol.process import command_line


def export(
    state_dir: StateDir, out: Annotated[Path, typer.Argument(help="Folder to make.")], merge: Merge = False
) -> None:
    """Write the newest model as a folder for transformers. Of a LoRA job its adapters, for peft."""
    with command_line.guarded():
        from dtfm_coordinator.tools.export import export as write

        manifest = write(state_dir, out, merge=merge)
        typer.echo(f"wrote the model after step {manifest.step} to {out}")


def report(
    state_dir: StateDir,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where it is written (HTML).")] = Path("report.html"),
) -> None:
    """Write the run as one HTML file. With curves, plans, members and job."""
    with command_line.guarded():
        from dtfm_coordinator.tools.report.command import write_report
        from dtfm_protocol.process.state_dir import check_writable

        check_writable(out)
        typer.echo(write_report(state_dir, out))


def generate(
    state_dir: StateDir,
    prompt: Annotated[str, typer.Option(help="Text to go on from.")],
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
) -> None:
    """Generate text from the newest checkpoint."""
    with command_line.guarded():
        from dtfm_coordinator.tools.generate import generate as sampled

        typer.echo(sampled(state_dir, prompt, tokens, temperature, seed))


def status(state_dir: StateDir, as_json: Json = False) -> None:
    """Say how the run goes, and who does what. Also what has happened of late."""
    with command_line.guarded():
        from dtfm_coordinator.tools.status import read, show

        values = read(state_dir)
        if as_json:
            typer.echo(json.dumps(values))
        else:
            show(values)
