"""Commands on what a node has contributed, and on the model that came of it."""

from pathlib import Path
from typing import Annotated

import typer

from dtfm_protocol.process import command_line

JoinedStateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="The one that it joined with (default: the only one there is).")
]
RecordStateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Of one node (default: all that this user has had).")
]


def contribution(
    state_dir: RecordStateDir = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check the record in this file, whoever it is from.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="ID", help="With --check: the coordinator that you trust (default: your own).")
    ] = None,
) -> None:
    """Show what this machine has contributed, as coordinators have signed it; or check such a record."""
    with command_line.guarded():
        from dtfm_node.commands import contribution as records

        typer.echo(records.shown(state_dir) if check is None else records.check(check, coordinator, state_dir))


def fetch_model(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to make (default: the job's name and the step).")
    ] = None,
    state_dir: JoinedStateDir = None,
) -> None:
    """Fetch the newest model of the swarm, as a folder that transformers loads; its owner must allow it."""
    with command_line.guarded():
        from dtfm_node.commands.fetch_model import fetch_model as fetch
        from dtfm_node.commands.state_folders import folder_of

        command_line.run(fetch(folder_of(state_dir), out))
