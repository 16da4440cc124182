"""Record of changes of plan in `epoch.json`: what a coordinator must not forget of them, whoever leads."""

import json
import time
from pathlib import Path
from typing import Self

from pydantic import Field

from dtfm_coordinator.plan_change.plan_change_events import Announced, Durable
from dtfm_coordinator.plan_change.plan_electors import Electorate
from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.control.messages import Epoch
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

FILE = "epoch.json"
COPY_SECONDS = 60.0
"""Seconds between the writing of the file and the last change of its entry on the disk, above which it is a copy: the
system dates the entry, also where the file was unpacked or copied with its times."""
VERSIONS_AHEAD = 1_000_000
"""Versions of plans that are left out after a disk was put back: those that were made since then are among them."""


class PlanRecord(Schema):
    """Content of the file: `Durable`, as JSON."""

    epoch: Epoch = Epoch()
    promised: dict[str, int] = Field(default_factory=dict)
    """Newest version that each peer has promised to this coordinator, by peer id."""
    doors: dict[str, tuple[tuple[str, int], ...]] = Field(default_factory=dict)
    """Addresses at which peers of plan `doors_of` took connections: a refusal there later tells that the process has
    ended."""
    doors_of: int = 0
    learnt: Plan | None = None
    """Newest plan that a node has shown with its promise, and that may be in force although this coordinator did not
    put it there, or does not remember it."""
    forgotten: int = 0
    """Version up to which plans may have been made that this coordinator does not remember, as its folder was put back
    to an earlier copy."""
    written_at: float = 0.0
    """Time of writing, in Unix seconds; 0: not known."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return what an earlier process has written to `folder`; an empty record if it has written none. In a copy of
        the folder, plans may be lacking that were made after it was copied.

        Raises:
            UserError: the file cannot be read.
        """
        path = folder / FILE
        if not path.exists():
            return cls()
        record = cls.read(_json(path), str(path))
        if not record.written_at or path.stat().st_ctime - record.written_at <= COPY_SECONDS:
            return record
        beyond = max(record.epoch.called, record.epoch.in_force, record.forgotten) + VERSIONS_AHEAD
        return record.model_copy(update={"forgotten": min(beyond, MOST_UINT32 - VERSIONS_AHEAD)})

    @property
    def is_put_back(self) -> bool:
        """Whether the folder was put back to an earlier copy, and no plan was called for since."""
        return self.forgotten > max(self.epoch.called, self.epoch.in_force)

    @classmethod
    def keeping(cls, durable: Durable, learnt: Plan | None = None) -> Self:
        """Return the record of `durable`, with the plan of which it has learnt."""
        return cls(
            epoch=Epoch(**durable.epoch._asdict()),
            promised=dict(sorted(durable.promised)),
            doors=dict(durable.doors),
            doors_of=durable.doors_of,
            learnt=learnt if durable.learnt is not None else None,
            forgotten=durable.forgotten,
        )

    @property
    def durable(self) -> Durable:
        """Values of the record as a plain tuple."""
        epoch = Announced(**self.epoch.model_dump())
        learnt = Electorate.of(self.learnt) if self.learnt is not None else None
        promised, doors = frozenset(self.promised.items()), tuple(self.doors.items())
        return Durable(epoch, promised, doors, self.doors_of, learnt, self.forgotten)

    def save(self, folder: Path) -> None:
        """Write the record to `folder`.

        Raises:
            UserError: there is no room on the disk.
        """
        dated = self.model_copy(update={"written_at": time.time()})
        write_atomically(folder / FILE, dated.model_dump_json(), lasting=True)


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; without it plans could contradict each other") from None
