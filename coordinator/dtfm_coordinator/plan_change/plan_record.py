"""`epoch.json`: what a coordinator must not forget of changes of plan, whoever leads."""

import json
from pathlib import Path
from typing import Self

from pydantic import Field

from dtfm_coordinator.plan_change.plan_change_events import Announced, Durable
from dtfm_protocol.control.topics import Epoch
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import write_atomically
from dtfm_protocol.schema import Schema

FILE = "epoch.json"


class PlanRecord(Schema):
    """The file's content; see `Durable`."""

    epoch: Epoch = Epoch()
    promised: dict[str, int] = Field(default_factory=dict)
    """The newest version that each peer has promised to this coordinator."""
    doors: dict[str, tuple[tuple[str, int], ...]] = Field(default_factory=dict)
    """Addresses at which peers of plan `doors_of` took connections: one that is refused there later tells that the
    process has ended."""
    doors_of: int = 0

    @classmethod
    def of(cls, folder: Path) -> Self:
        """What an earlier life has written to `folder`.

        Raises:
            UserError: it cannot be read.
        """
        path = folder / FILE
        return cls.read(_json(path), str(path)) if path.exists() else cls()

    @classmethod
    def keeping(cls, durable: Durable) -> Self:
        """The content that keeps `durable`."""
        return cls(
            epoch=Epoch(**durable.epoch._asdict()),
            promised=dict(sorted(durable.promised)),
            doors=dict(durable.doors),
            doors_of=durable.doors_of,
        )

    @property
    def durable(self) -> Durable:
        """The same as plain values."""
        epoch = Announced(**self.epoch.model_dump())
        return Durable(epoch, frozenset(self.promised.items()), tuple(self.doors.items()), self.doors_of)

    def save(self, folder: Path) -> None:
        """Write it down.

        Raises:
            UserError: there is no room.
        """
        write_atomically(folder / FILE, self.model_dump_json(), lasting=True)


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; without it plans could contradict each other") from None
