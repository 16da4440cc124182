"""Event log of a run: a line for each plan that began, in `history.jsonl`."""

from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log
from dtfm_protocol.schema import Schema


class PlanEvent(Schema):
    """Event: a plan followed another. Times are in Unix seconds."""

    plan: int
    why: str
    called_at: float
    """Time when the plan before it was ended."""
    in_force_at: float
    started_at: float = 0.0
    """Time when all its peers held the state that it goes on from."""
    step: int
    """Step whose state it goes on from."""
    repeated: int
    """Number of steps that had been final and are run again."""
    source: str
    """Origin of that state: "start", "replicas", "snapshots" or "checkpoint"."""
    moved_bytes: int = 0
    """Bytes of state that peers fetched."""

    @property
    def said(self) -> str:
        """Steps that are run again, in words for people; "": there are none."""
        if not self.repeated:
            return ""
        steps = "1 step is" if self.repeated == 1 else f"{self.repeated} steps are"
        return f" ({steps} run again, from {self.source})"


def append(folder: Path, event: PlanEvent) -> None:
    """Append an event to the log; if there is no room on the disk, the run goes on without."""
    try:
        with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(event.model_dump_json() + "\n")
    except OSError as error:
        log.warning("What happens cannot be written down in history.jsonl: %s", error.strerror)


def read(folder: Path) -> list[PlanEvent]:
    """Return all events of a run, oldest first.

    Raises:
        UserError: the file cannot be read.
    """
    path = folder / "history.jsonl"
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return [PlanEvent.model_validate_json(line) for line in lines]
