"""`dtfm-node remove`: deletes what a node that has left keeps of its swarm, and nothing else."""

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dtfm_node.commands.config_file import CONFIG
from dtfm_node.commands.consent import CONSENT
from dtfm_node.commands.kept_contributions import keep, records_folder
from dtfm_node.commands.kept_invite import INVITE
from dtfm_node.control.contribution_keeper import NAME as CONTRIBUTION
from dtfm_node.devices.device_folders import DEVICES, LIST, device_folders
from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.freshness_files import COUNTER, HEARD
from dtfm_protocol.process.logs import LOG_PARTS
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.process.state_dir import is_live, locked

MARKS = (CONSENT, "credential.json")
"""Files of which one lies in each folder with which a node has joined, and in no other program's."""
OTHERS = ("swarm", "job.json", "ports.json")
"""Files that a coordinator or `dtfm-node solo` keeps in its state folder."""
LOGS = ("node.log", *(f"node.log.{part + 1}" for part in range(LOG_PARTS)))
"""Names of the log of a node that runs as a service, and of its older parts."""
FILES = (
    LIST, "status.json", "pause.json", "promise.json", "plan.json", COUNTER, HEARD, CONFIG, *LOGS, "windows-task.xml",
    CONTRIBUTION, INVITE, "key", *MARKS, "lock",
)  # fmt: skip
"""Files of a node, in the order in which they are deleted: a removal that was cut short can be begun again."""
FOLDERS = {
    "tokens": ("training text", re.compile(r"\.?[0-9a-f]{64}\.tokens(\.[0-9a-f]+)?")),
    "base": ("the model as it begins", re.compile(r"[0-9a-f]{64}\.safetensors|\.part-[0-9a-f]{16}")),
    "snapshots": ("parts of the model", re.compile(r"\.?(step|coming)-[\w.-]+")),
}
"""Folders of a node: what lies in each, and the names of files there."""
NAMES_SHOWN = 5


@dataclass(frozen=True)
class Removal:
    """The removal of one node's files, under the lock of its state folder."""

    folder: Path
    sizes: dict[Path, int]
    """Bytes of each file that goes, in the order in which they go."""
    devices: tuple[Path, ...] = ()
    """State folders of the nodes of its devices, which go first."""

    @classmethod
    @contextlib.contextmanager
    def of(cls, folder: Path, option: str) -> Iterator[Self]:
        """Keep nodes from starting with `folder` in the block, and find what is to be deleted.

        Args:
            option: what `leave` needs behind its name to find the folder.

        Raises:
            UserError: the folder is not a node's, or not a node's alone; or the node runs.
        """
        _check_is_a_nodes(folder)
        if is_live(folder):
            raise UserError(f"a node runs with {folder}: have it leave first, with `dtfm-node leave{option}`")
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(folder))
            devices = [one for one in device_folders(folder) if any((one / name).exists() for name in MARKS)]
            for one in devices:  # each has been a node of its own
                stack.enter_context(locked(one))
            sizes = {path: size for one in (*devices, folder) for path, size in _own_files(one)}
            yield cls(folder, sizes, tuple(devices))

    def screen(self) -> str:
        """Return what is going to happen, in words for people."""
        lines = ["This deletes what this machine keeps of its swarm, in", f"  {printable(str(self.folder))}"]
        for name, (what, _) in FOLDERS.items():
            size = sum(size for path, size in self.sizes.items() if path.parent.name == name)
            lines.append(f"  {what}: {bytes_in_words(size)}")
        if self._records():
            thanks = [
                "The record of what it has contributed is kept, in",
                f"  {printable(str(records_folder()))} (`dtfm-node contribution --delete` deletes that)",
            ]
        else:
            thanks = []
        return "\n".join(
            [
                *lines,
                *thanks,
                "Its key goes as well: to come back, this machine needs an invite again.",
                "If the node was ended by force, let it join and leave once more before: parts",
                "of the model may be nowhere else.",
            ]
        )

    def carry_out(self) -> str:
        """Delete the files, and the folders that are empty then; return what was freed, in a line.

        Raises:
            UserError: the system refuses to delete something.
        """
        kept = [str(place) for place in map(keep, self._records()) if place is not None]
        try:
            for path in self.sizes:
                path.unlink(missing_ok=True)
            nodes = (*self.devices, self.folder)
            own = [[*(node / name for name in FOLDERS), node] for node in nodes]
            own[-1].insert(0, self.folder / DEVICES)
            for folder in itertools.chain.from_iterable(own):
                with contextlib.suppress(FileNotFoundError):
                    if not folder.is_symlink() and not any(folder.iterdir()):
                        folder.rmdir()
        except OSError as error:
            raise UserError(f"cannot delete all of {self.folder}: {error}; mend that, and run this again") from None
        thanks = f"; the record of what it has contributed is {' and '.join(kept)}" if kept else ""
        return f"removed: {bytes_in_words(sum(self.sizes.values()))} freed; {self._left()}{thanks}"

    def _records(self) -> list[Path]:
        """Return the signed records among the files: each device's node has its own."""
        return [path for path in self.sizes if path.name == CONTRIBUTION]

    def _left(self) -> str:
        if not self.folder.exists():
            return f"{self.folder} is gone"
        names = sorted(path.name for path in self.folder.iterdir())
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        listed = ", ".join(map(printable, names[:NAMES_SHOWN]))
        return f"{self.folder} stays, for what in it is not a node's: {listed}{more}"


def _check_is_a_nodes(folder: Path) -> None:
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, and nothing is deleted through links: name the folder itself")
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if folder.stat().st_uid != os.geteuid() or not any((folder / name).exists() for name in MARKS):
        raise UserError(f"no node of yours has joined with {folder}: nothing was deleted")
    if any((folder / name).exists() for name in OTHERS):
        raise UserError(
            f"{folder} holds a coordinator's state or a solo training, too: nothing was deleted; "
            "delete by hand what you do not need"
        )


def _own_files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Find a node's files and their bytes; links are none of them, and are not followed."""
    for name, (_, pattern) in FOLDERS.items():
        if stat.S_ISDIR(_mode(folder / name)):
            yield from (
                (path, path.lstat().st_size)
                for path in sorted((folder / name).iterdir())
                if pattern.fullmatch(path.name) and stat.S_ISREG(_mode(path))
            )
    for name in FILES:
        for path in (folder / f".{name}.tmp", folder / name):
            if stat.S_ISREG(_mode(path)):
                yield path, path.lstat().st_size


def _mode(path: Path) -> int:
    """Return the kind and mode of a file or link; 0 where there is none."""
    try:
        return path.lstat().st_mode
    except OSError:
        return 0
