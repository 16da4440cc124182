"""Watch over what a run has stored: checkpoints, and room on the disk."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dtfm_coordinator.swarm.overview.overview import CheckpointView, Storage

LOOK_SECONDS = 30.0
"""How often the disk is looked at where no checkpoint has come."""


class StorageWatch:
    """Watch over the state folder, which it reads now and then."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._storage = Storage()
        self._kept, self._next = -1, 0.0

    def look(self, kept: int) -> Storage:
        """Return what is stored.

        Args:
            kept: step of the newest checkpoint: where it is another one than before, the disk is read at once.
        """
        if kept != self._kept or self._clock() >= self._next:
            self._kept, self._next = kept, self._clock() + LOOK_SECONDS
            self._storage = Storage(checkpoints=_checkpoints(self._folder / "checkpoints"), free_bytes=self._free())
        return self._storage

    def _free(self) -> int | None:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError:
            return None


def _checkpoints(folder: Path) -> tuple[CheckpointView, ...]:
    found = []
    try:
        for manifest in folder.glob("step-*/manifest.json"):
            digits = manifest.parent.name.removeprefix("step-")
            if digits.isdigit():
                size = sum(file.stat().st_size for file in manifest.parent.iterdir())
                found.append(CheckpointView(step=int(digits), at=manifest.stat().st_mtime, size=size))
    except OSError:  # one that is deleted at this moment
        pass
    return tuple(sorted(found, key=lambda one: -one.step))
