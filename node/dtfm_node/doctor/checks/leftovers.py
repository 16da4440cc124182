"""Check for other nodes on this machine, and for what killed ones have left."""

import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from dtfm_node.doctor.findings import Finding, bad, counted, good, warn
from dtfm_protocol.process.state_dir import holder, is_live

GROUP = "this machine"
_SOCKET = re.compile(r"^-listen=/unix(?P<folder>/.*/dtfm-[^/]+)/daemon\.sock$")
"""Pattern of the argument that tells a libp2p daemon (p2pd) that a node has started, and its folder."""


@dataclass(frozen=True)
class LeftoversObservation:
    """Live and killed nodes' traces on this machine."""

    state_dir: Path | None = None
    process: int | None = None
    """Process id of the live node that holds the state dir; None: there is none."""
    writable: bool = True
    """Whether a node may write to the state dir, or make it."""
    open_key: bool = False
    """Whether others may read the state dir's key."""
    folders: int = 0
    """Number of temporary folders that killed nodes have left."""
    daemons: tuple[int, ...] = ()
    """Process ids of libp2p daemons whose node is dead."""


def look(state_dir: Path | None) -> LeftoversObservation:
    """Find the traces of nodes on this machine, and change nothing."""
    folders = sum(
        not is_live(lock.parent) for lock in Path(tempfile.gettempdir()).glob("dtfm-*/lock") if _is_mine(lock)
    )
    if state_dir is None:
        return LeftoversObservation(folders=folders, daemons=_orphans())
    key = state_dir / "key"
    there = nearest(state_dir)
    return LeftoversObservation(
        state_dir,
        holder(state_dir) if is_live(state_dir) else None,
        there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        _is_mine(key) and bool(key.stat().st_mode & 0o077),
        folders,
        _orphans(),
    )


def nearest(folder: Path) -> Path:
    """Return `folder` itself if it exists, else the nearest folder above it that does."""
    path = folder.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _is_mine(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _orphans() -> tuple[int, ...]:
    """Return process ids of this user's libp2p daemons of dead nodes: nobody holds the lock of their folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() != "p2pd" or process.uids().real != os.getuid():
                continue
            folders = [match["folder"] for word in process.cmdline() if (match := _SOCKET.match(word))]
            if folders and not is_live(Path(folders[0])):
                found.append(process.pid)
    return tuple(found)


def judge(seen: LeftoversObservation) -> list[Finding]:
    """Judge which of the traces are in a new node's way."""
    found = []
    if seen.state_dir is not None:
        found.append(_judge_state_dir(seen, seen.state_dir))
    if seen.open_key:
        found.append(
            bad(GROUP, "key", f"other users may read {seen.state_dir}/key", f"chmod 600 '{seen.state_dir}/key'")
        )
    if seen.daemons:
        which = " ".join(map(str, seen.daemons[:8]))
        found.append(
            warn(
                GROUP,
                "leftovers",
                f"{counted(len(seen.daemons), 'libp2p daemon')} (p2pd) of killed nodes still running",
                f"end them: kill {which}",
            )
        )
    elif seen.folders:
        found.append(
            good(
                GROUP,
                "leftovers",
                f"{counted(seen.folders, 'folder')} of killed nodes, which the next start takes away",
            )
        )
    else:
        found.append(good(GROUP, "leftovers", "none of killed nodes"))
    return found


def _judge_state_dir(seen: LeftoversObservation, folder: Path) -> Finding:
    if seen.process is not None:
        return warn(
            GROUP,
            "state dir",
            f"a node (process {seen.process}) runs with {folder} already",
            f"leave that one running, or end it before you join again: dtfm-node leave --state-dir '{folder}'",
        )
    if not seen.writable:
        return bad(GROUP, "state dir", f"{folder} cannot be written to", "choose another --state-dir")
    return good(GROUP, "state dir", f"{folder} is free to use")
