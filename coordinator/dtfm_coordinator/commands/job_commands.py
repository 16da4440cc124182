"""Commands on a job file before it is served: what it means, and whether anything is wrong with it."""

from typing import Annotated

import typer

from dtfm_coordinator.commands.option_types import JobFile, Json
from dtfm_protocol.process import command_line


def check(
    job: JobFile,
    machines: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1024, help="Say how long so many home machines take (default: 1, 2, 4, 8 and 16)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a job file means, and what is wrong with it. Also how long it takes; nothing is tokenized or served."""
    with command_line.guarded():
        from dtfm_coordinator.tools.check.command import HomeMachines
        from dtfm_coordinator.tools.check.command import check as checked
        from dtfm_lab.networks.alike_homes import alike_homes, machine_in_words

        homes = HomeMachines(alike_homes, machine_in_words)
        with command_line.interruptible():
            can_be_served = checked(job, homes, tuple(machines) if machines else None, as_json=as_json)
    if not can_be_served:
        raise SystemExit(command_line.EXIT_USER)
