"""`dtfm-coordinator`: the owner's command line."""

import typer

from dtfm_coordinator.commands.change_commands import fork, set_values
from dtfm_coordinator.commands.checkpoint_commands import checkpoints
from dtfm_coordinator.commands.job_commands import check
from dtfm_coordinator.commands.lab_commands import compare, lab, lifetimes, network
from dtfm_coordinator.commands.membership_commands import ban, invite, kick, members, revoke, rotate, unban
from dtfm_coordinator.commands.model_commands import export, generate, report, status
from dtfm_coordinator.commands.owner_commands import cancel, checkpoint, finish, pause, replan, resume
from dtfm_coordinator.commands.page_commands import page
from dtfm_coordinator.commands.plan_commands import explain, plan, trace
from dtfm_coordinator.commands.swarm_commands import card, serve, swarm
from dtfm_protocol.process import command_line, extras
from dtfm_protocol.process.product_version import VersionOption

app = typer.Typer(
    help="Have a community train a language model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

LAB_COMMANDS = {"compare", "lab", "lifetimes", "network"}
"""Researchers' commands; all others are the owner's."""


@app.callback()
def _begin(context: typer.Context, version: VersionOption = False) -> None:
    with command_line.guarded():
        extras.require("lab" if context.invoked_subcommand in LAB_COMMANDS else "coordinator")


for _command in (
    check,
    serve,
    pause,
    resume,
    checkpoint,
    replan,
    finish,
    cancel,
    set_values,
    fork,
    invite,
    members,
    revoke,
    kick,
    ban,
    unban,
    rotate,
    page,
    card,
    swarm,
    plan,
    explain,
    compare,
    lifetimes,
    network,
    lab,
    trace,
    export,
    generate,
    status,
    report,
):
    app.command("set" if _command is set_values else None)(_command)  # help lists them in this order
app.add_typer(checkpoints, name="checkpoints")


def main() -> None:
    """Entry point of the console script."""
    command_line.command_line(app)
