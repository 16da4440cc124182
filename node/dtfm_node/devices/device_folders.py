"""Folders of the devices' nodes, under the state folder with which they joined."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dtfm_protocol.process.state_dir import write_atomically

DEVICES = "devices"
"""Name of the folder in a state folder that has one for each device."""
LIST = "devices.json"
"""Name of the file in a state folder that says which of them the last `join` was for; without it, for none."""


def folder_names(devices: Sequence[str]) -> list[str]:
    """Return the name of each device's folder: "cuda-0", or "cpu-2" for the processor's second node."""
    seen, names = Counter[str](), []
    for device in devices:
        seen[device] += 1
        plain = device.replace(":", "-")
        names.append(plain if seen[device] == 1 else f"{plain}-{seen[device]}")
    return names


def keep_list(folder: Path, names: Sequence[str]) -> None:
    """Write down which folders the nodes of `folder` have; none: it has one node, with `folder` itself.

    Raises:
        UserError: it cannot be written.
    """
    if names:
        write_atomically(folder / LIST, json.dumps(list(names)), private=True)
    else:
        (folder / LIST).unlink(missing_ok=True)


def nodes_of(folder: Path) -> list[Path]:
    """Return the state folders of the nodes of the last `join`: those of its devices, or `folder` itself."""
    try:
        names = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [folder]
    known = {path.name: path for path in device_folders(folder)}
    return [known[name] for name in names if name in known] or [folder] if isinstance(names, list) else [folder]


def device_folders(folder: Path) -> list[Path]:
    """Return the state folders of all devices that ever had a node under `folder`; links are none of them."""
    where = folder / DEVICES
    if where.is_symlink() or not where.is_dir():
        return []
    return sorted(path for path in where.iterdir() if path.is_dir() and not path.is_symlink())
