"""Options of `join` that outlive it: what was said stays in the node's config file, and is said at each start."""

import os
from pathlib import Path
from typing import Any

from dtfm_node.commands.chosen_limits import ChosenLimits
from dtfm_node.commands.config_file import CONFIG, ConfiguredCommand, keep
from dtfm_node.limits.machine_readings import FAMILY
from dtfm_protocol.process.logs import log


def keep_options(command: ConfiguredCommand, context: Any, limits: ChosenLimits, folder: Path) -> None:
    """Keep what the person has said in the config file of a state folder, and say what holds.

    A node of one of several devices keeps nothing: what holds for it is worked out anew at each start.

    Args:
        command: the command `join`, run in `context`.
        limits: those in force.
        folder: the state folder, which is locked.

    Raises:
        UserError: the file cannot be written.
    """
    if FAMILY not in os.environ:
        path = folder / CONFIG
        keep(command.template(context), command.to_keep(context, path), folder)
        log.info("%s", said_of(limits, path))


def said_of(limits: ChosenLimits, path: Path) -> str:
    """Return in a line what a node is called and may take, and how its person takes that back."""
    name = (
        f'this machine is called "{limits.name}"' if limits.name else "this machine has no name (--name gives it one)"
    )
    if not limits.in_words:
        return f"{name}; you have set no limits (`dtfm-node join --help` lists them)"
    return f"{name}; what you allow: {limits.in_words}; to take something back, put a # before its line in {path}"
