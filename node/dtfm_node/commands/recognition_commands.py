"""Commands on what a node has contributed, and on the model that came of it."""

from pathlib import Path
from typing import Annotated

import typer

from dtfm_protocol.process import command_line

JoinedStateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="The node's state folder (default: the only one there is).")
]
RecordStateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", help="Of the node with this state folder (default: of all that this user has had)."),
]


def contribution(
    state_dir: RecordStateDir = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Check the record in this file, whoever it is from.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="ID", help="With --check: the coordinator that you trust (default: your own).")
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the records, those of nodes that were removed, too.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --delete: ask nothing.")] = False,
) -> None:
    """Show what this machine has contributed. Coordinators have signed it; check such a record, or delete them."""
    with command_line.guarded():
        from dtfm_node.commands import contribution as records
        from dtfm_node.commands.yes_no_question import agreed
        from dtfm_protocol.errors import UserError

        if delete and check is not None:
            raise UserError("--delete and --check: give one of them; what is checked is not deleted")
        if not delete:
            typer.echo(records.shown(state_dir) if check is None else records.check(check, coordinator, state_dir))
            return
        deletion = records.Deletion.of(state_dir)
        nobody = "this is no terminal to ask at: give --yes"
        if not yes and not agreed(deletion.screen(), "Delete it for good?", nobody, "nothing was deleted"):
            raise typer.Exit(1)
        typer.echo(deletion.carry_out())


def fetch_model(
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to make (default: the job's name and the step).")
    ] = None,
    state_dir: JoinedStateDir = None,
) -> None:
    """Fetch the newest model of the swarm. A folder that transformers loads; the owner must allow it."""
    with command_line.guarded():
        from dtfm_node.commands.fetch_model import fetch_model as fetch
        from dtfm_node.commands.state_folders import folder_of

        command_line.run(fetch(folder_of(state_dir), out))
