"""State folders of this user's nodes that run now, wherever they lie: as the system's list of processes names them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from dtfm_protocol.process.state_dir import is_live

Command = tuple[Sequence[str], Path]
"""Arguments of a process, its program first, and its working directory."""


def running_folders(commands: Iterable[Command] | None = None) -> list[Path]:
    """Return the state folders that were named to a `dtfm-node join` that runs; those of single devices are left out.

    Args:
        commands: the processes to look at; None: all of this machine that this user may look at.
    """
    named = (_folder_in(*command) for command in (_commands() if commands is None else commands))
    found = sorted({folder for folder in named if folder is not None and is_live(folder)})
    return [folder for folder in found if not any(other in folder.parents for other in found)]


def _commands() -> Iterator[Command]:
    for process in psutil.process_iter():
        try:
            yield process.cmdline(), Path(process.cwd())
        except (psutil.Error, OSError):  # it has gone, or is another user's
            continue


def _folder_in(arguments: Sequence[str], cwd: Path) -> Path | None:
    """Return the state folder that a command line of `dtfm-node join` names; None: it names none, or is another's."""
    if not any(Path(one).name == "dtfm-node" for one in arguments[:3]) or "join" not in arguments:
        return None
    for one, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if one == "--state-dir" and following:
            return cwd / following
        if one.startswith("--state-dir="):
            return cwd / one.removeprefix("--state-dir=")
    return None
