"""What happened to a run: a line for each plan that began, in `history.jsonl`."""

from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log
from dtfm_protocol.schema import Schema


class PlanEvent(Schema):
    """A plan followed another."""

    plan: int
    why: str
    called_at: float
    """When the plan before it was ended, in Unix seconds; likewise below."""
    in_force_at: float
    started_at: float = 0.0
    """When all its peers held what it goes on from."""
    step: int
    """What it goes on from."""
    repeated: int
    """Steps that had been final and are run again."""
    source: str
    """Where the state came from: "start", "replicas", "snapshots" or "checkpoint"."""
    moved_bytes: int = 0
    """Of state that peers fetched."""

    @property
    def said(self) -> str:
        """What is run again, for people."""
        if not self.repeated:
            return ""
        steps = "1 step is" if self.repeated == 1 else f"{self.repeated} steps are"
        return f" ({steps} run again, from {self.source})"


def append(folder: Path, event: PlanEvent) -> None:
    """Write an event down; where there is no room, the run goes on without."""
    try:
        with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(event.model_dump_json() + "\n")
    except OSError as error:
        log.warning("cannot write the history: %s", error.strerror)


def read(folder: Path) -> list[PlanEvent]:
    """All events of a run.

    Raises:
        UserError: the file is not one of events.
    """
    path = folder / "history.jsonl"
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return [PlanEvent.model_validate_json(line) for line in lines]
