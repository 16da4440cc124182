"""Late actions of programs that are paced like slower devices: what the machine under them could not keep up with.

A paced action is to take as long as on the device that it stands for. Where it takes longer, because the machine is too
slow or too busy, a step takes longer than it would there, and figures of it tell of this machine.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = "DTFM_LATE_ACTIONS"
"""Name of the environment variable that says in which folder paced programs keep their counts; without it they do not.
"""
TOLERANCE = 1e-3
"""Seconds by which an action may end after its time without being late: about what a clock's tick and a thread's waking
take."""
EVERY = 1.0
"""Seconds between two lines of a file of counts."""


@dataclass(frozen=True, slots=True)
class LateActions:
    """A count of late actions."""

    actions: int = 0
    """Number of paced actions."""
    late: int = 0
    """Number of those that took longer than the pace asks for."""
    most: float = 0.0
    """Seconds by which the latest of them was late."""

    def __add__(self, other: "LateActions") -> "LateActions":
        return LateActions(self.actions + other.actions, self.late + other.late, max(self.most, other.most))

    @property
    def text(self) -> str:
        """The count in one line."""
        if not self.late:
            return f"pace kept: none of {self.actions:,} actions was late"
        return f"pace missed: {self.late:,} of {self.actions:,} actions were late, by {self.most * 1e3:.3g} ms at most"


class LateActionCount:
    """The count of one program, kept in its file of a folder if there is one. One thread uses it."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._written = clock, clock()
        self._file = None if folder is None else folder / f"{os.getpid()}.jsonl"
        self._unwritten = LateActions()
        self.total = LateActions()

    @classmethod
    def of_environment(cls) -> "LateActionCount":
        """Make the count that is kept where the environment says."""
        folder = os.environ.get(FOLDER)
        return cls(Path(folder) if folder else None)

    def note(self, excess: float) -> None:
        """Count a paced action that has taken `excess` seconds more than it was to take."""
        late = excess > TOLERANCE
        one = LateActions(1, int(late), excess if late else 0.0)
        self.total += one
        self._unwritten += one
        if self._clock() - self._written >= EVERY:
            self.write()

    def write(self) -> None:
        """Append what was counted since the last line."""
        now = self._clock()
        if self._file is not None and self._unwritten.actions:
            one = self._unwritten
            line = {"actions": one.actions, "late": one.late, "most": one.most}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self._written, self._unwritten = now, LateActions()


def kept_in(folder: Path) -> LateActions:
    """Return the sum of all programs' counts in a folder."""
    total = LateActions()
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # whose program was killed while it wrote
                total += LateActions(**json.loads(line))
    return total
