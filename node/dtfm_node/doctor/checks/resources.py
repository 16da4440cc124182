"""Check whether memory, disk and open files are enough for the job.

Run as a program, it reads state dir and device from standard input, and writes a `ResourcesObservation`, or
why it cannot, as JSON.
"""

import json
import resource
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtfm_node.doctor import separate_process
from dtfm_node.doctor.checks.leftovers import nearest
from dtfm_node.doctor.findings import Finding, bad, good, warn
from dtfm_node.doctor.job_needs import Need
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import bytes_in_words

GROUP = "this machine"
OPEN_FILES = 512
"""Number of open files that a node needs: a few for each peer, and those of its libraries."""
SPARE_DISK = 1 << 30


@dataclass(frozen=True)
class ResourcesObservation:
    """Resources of this machine; sizes in bytes."""

    device: str
    memory: int
    """Bytes that are free on the device that would compute."""
    disk: int
    """Bytes that are free on the disk of the state dir."""
    open_files: int
    """Number of files that a process may have open at most."""
    host: int | None = None
    """Bytes that are free in the machine's memory, where the device has its own; None: it has none."""


async def look(state_dir: Path | None, device: str) -> ResourcesObservation:
    """Ask the system, and torch for its device, in a process of its own, for the device's driver may hang.

    Raises:
        UserError: there is no such device.
        OSError: that process cannot be started, or has ended without an answer.
    """
    said = await separate_process.answer(
        __name__, json.dumps({"state_dir": str(state_dir or Path()), "device": device})
    )
    if "fault" in said:
        raise UserError(said["fault"])
    return ResourcesObservation(**said)


def _answer(state_dir: str, device: str) -> dict[str, Any]:
    try:
        return asdict(_look(Path(state_dir), device))
    except UserError as error:
        return {"fault": str(error)}


def _look(state_dir: Path, device: str) -> ResourcesObservation:
    from dtfm_node.engine.device import choose, describe, free_host_memory, free_memory

    chosen = choose(device)
    disk = shutil.disk_usage(nearest(state_dir)).free
    return ResourcesObservation(
        describe(chosen),
        free_memory(chosen),
        disk,
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        free_host_memory(chosen),
    )


def judge(seen: ResourcesObservation, need: Need | None) -> list[Finding]:
    """Judge what this machine has against the job's `need`, or without one against what any job asks for."""
    return [_memory(seen, need), *_host_memory(seen, need), _disk(seen, need), _files(seen)]


def _memory(seen: ResourcesObservation, need: Need | None) -> Finding:
    has = f"{bytes_in_words(seen.memory)} free on {seen.device}"
    if need is None:
        return good(GROUP, "memory", f"{has}; what the job needs is not known")
    if need.fault:
        return bad(
            GROUP,
            "model",
            f"the job's model cannot be built here: {need.fault}",
            "ask the swarm's owner which versions of dtfm and transformers to install",
        )
    needed = need.smallest_stage if seen.host is None else need.smallest_apart
    text = f"{has}; the job's smallest stage needs {bytes_in_words(needed)}"
    if seen.memory >= needed:
        return good(GROUP, "memory", text)
    return bad(GROUP, "memory", text, "close other programs on that device, or join from a machine with more memory")


def _host_memory(seen: ResourcesObservation, need: Need | None) -> list[Finding]:
    """Judge the machine's memory beside that of its device, where a job keeps states there."""
    if seen.host is None or need is None or not need.apart_host:
        return []
    free, kept = bytes_in_words(seen.host), bytes_in_words(need.apart_host)
    text = f"{free} free in this machine's memory; beside the device's, that stage needs {kept} there"
    if seen.host >= need.apart_host:
        return [good(GROUP, "memory beside", text)]
    return [bad(GROUP, "memory beside", text, "close other programs, or join from a machine with more memory")]


def _disk(seen: ResourcesObservation, need: Need | None) -> Finding:
    # Text, and beside the stage that is trained a snapshot of it.
    wanted = SPARE_DISK if need is None or need.fault else need.corpus + 2 * need.smallest_stage
    text = f"{bytes_in_words(seen.disk)} free; a node of this job wants about {bytes_in_words(wanted)}"
    if seen.disk >= wanted:
        return good(GROUP, "disk", text)
    return warn(GROUP, "disk", text, "make room there, or choose a --state-dir on a larger disk")


def _files(seen: ResourcesObservation) -> Finding:
    limit = "any number of" if seen.open_files == resource.RLIM_INFINITY else f"{seen.open_files:,}"
    text = f"a process may have {limit} files and connections open"
    if seen.open_files == resource.RLIM_INFINITY or seen.open_files >= OPEN_FILES:
        return good(GROUP, "open files", text)
    return warn(GROUP, "open files", text, "before joining, in the same shell: ulimit -n 4096")


if __name__ == "__main__":
    print(json.dumps(_answer(**json.load(sys.stdin))))
