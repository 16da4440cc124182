"""`dtfm-node join` on several devices: a node on each of them, each with a folder and a key of its own."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from dtfm_node.commands.kept_invite import INVITE
from dtfm_node.devices.device_folders import DEVICES, folder_names, keep_list
from dtfm_node.devices.device_nodes import DeviceNode, DeviceNodes
from dtfm_node.devices.device_shares import Allowed, arguments_of
from dtfm_node.state.disk_budget import most_disk
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line
from dtfm_protocol.process.logs import log

DIVIDED = (
    "device", "threads", "memory", "disk", "upload", "download", "port", "announce", "name", "log-format",
)  # fmt: skip
"""Options of `join` that its nodes do not get as they are: they share them, or each has its own."""


@dataclass(frozen=True)
class Asked:
    """What the person has asked of all devices together; None: nothing."""

    devices: tuple[str, ...]
    threads: int | None
    memory_gb: float | None
    disk_gb: float | None
    upload: float
    """Bytes a second; infinite where there is no cap."""
    download: float
    port: int
    announce: str | None
    name: str
    others: Mapping[str, str | bool]
    """Options that each node gets as they are."""

    def allowed(self, folder: Path) -> Allowed:
        """Return what all nodes may take together of this machine, whose state lies in `folder`."""
        held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return Allowed(
            threads=self.threads or os.cpu_count() or 1,
            memory_gb=self.memory_gb,
            memory_free=int(psutil.virtual_memory().available),
            disk_bytes=most_disk(self.disk_gb, shutil.disk_usage(folder).free, held),
            upload=self.upload,
            download=self.download,
            port=self.port,
            announce=self.announce,
            name=self.name,
            others=self.others,
        )


def join_devices(folder: Path, asked: Asked, program: Sequence[str] = ()) -> None:
    """Run a node on each device, under the state folder that holds the invite, until all have ended.

    Args:
        folder: the state folder, which is locked.
        asked: what the person has asked for.
        program: what stands in for `dtfm-node join`.

    Raises:
        UserError: a limit is too low to be divided, or no node could take part.
    """
    names = folder_names(asked.devices)
    options = arguments_of(asked.allowed(folder), asked.devices)
    keep_list(folder, names)
    command = tuple(program) or (str(_program()), "join")
    nodes = []
    for name, given in zip(names, options, strict=True):
        own = folder / DEVICES / name
        arguments = ("--yes", f"@{folder / INVITE}", f"--state-dir={own}", "--log-format=json", *given)
        nodes.append(DeviceNode(name, own, (*command, *arguments)))
    log.info("starting a node on each of %d devices: %s", len(names), ", ".join(names))
    running = DeviceNodes(nodes)
    command_line.run(running.run(), running.leave)


def _program() -> Path:
    program = Path(sys.executable).parent / "dtfm-node"
    if not program.exists():
        raise UserError(f"there is no {program}, which runs the node of each device: install dtfm with pip")
    return program
