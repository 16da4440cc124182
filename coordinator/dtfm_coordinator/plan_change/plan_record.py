"""Record of changes of plan in `epoch.json`: what a coordinator must not forget of them, whoever leads."""

import json
from pathlib import Path
from typing import Self

from pydantic import Field

from dtfm_coordinator.plan_change.plan_change_events import Announced, Durable
from dtfm_protocol.control.messages import Epoch
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

FILE = "epoch.json"


class PlanRecord(Schema):
    """Content of the file: `Durable`, as JSON."""

    epoch: Epoch = Epoch()
    promised: dict[str, int] = Field(default_factory=dict)
    """Newest version that each peer has promised to this coordinator, by peer id."""
    doors: dict[str, tuple[tuple[str, int], ...]] = Field(default_factory=dict)
    """Addresses at which peers of plan `doors_of` took connections: a refusal there later tells that the process has
    ended."""
    doors_of: int = 0

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return what an earlier process has written to `folder`; an empty record if it has written none.

        Raises:
            UserError: the file cannot be read.
        """
        path = folder / FILE
        return cls.read(_json(path), str(path)) if path.exists() else cls()

    @classmethod
    def keeping(cls, durable: Durable) -> Self:
        """Return the record of `durable`."""
        return cls(
            epoch=Epoch(**durable.epoch._asdict()),
            promised=dict(sorted(durable.promised)),
            doors=dict(durable.doors),
            doors_of=durable.doors_of,
        )

    @property
    def durable(self) -> Durable:
        """Values of the record as a plain tuple."""
        epoch = Announced(**self.epoch.model_dump())
        return Durable(epoch, frozenset(self.promised.items()), tuple(self.doors.items()), self.doors_of)

    def save(self, folder: Path) -> None:
        """Write the record to `folder`.

        Raises:
            UserError: there is no room on the disk.
        """
        write_atomically(folder / FILE, self.model_dump_json(), lasting=True)


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; without it plans could contradict each other") from None
