"""Feed of a run's metrics to boards, as they come onto the disk."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from dtfm_coordinator.records.growing_file import GrowingFile
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.process.logs import log

LOOK_SECONDS = 2.0


@dataclass(frozen=True)
class BoardOptions:
    """Boards to which a run's metrics are written."""

    tensorboard: Path | None = None
    """Folder of TensorBoard's files; None: none are written."""
    wandb: str | None = None
    """Project of Weights & Biases; None: nothing is written for it."""

    def check(self) -> None:
        """Check that the packages that write them are there.

        Raises:
            UserError: one is not installed.
        """
        for option, wanted in (("tensorboard", self.tensorboard), ("wandb", self.wandb)):
            if wanted is not None and find_spec(option) is None:
                raise UserError(f"--{option} needs the package of that name: pip install {option}")


class Board(Protocol):
    """A board for the metrics of one run."""

    def write(self, row: StepMetrics) -> None:
        """Take the metrics of the step after the one before."""

    def go_back(self, step: int) -> None:
        """Forget the steps after `step`: they are run again."""

    def flush(self) -> None:
        """Have all that was written seen."""

    def close(self) -> None:
        """End the log."""


def scalars(row: StepMetrics) -> dict[str, float]:
    """Return the figures of a step under the names that boards show them by."""
    found = {
        "train/learning_rate": row.learning_rate,
        "train/grad_norm": row.grad_norm,
        "speed/step_seconds": row.seconds,
        "speed/tokens_per_second": row.tokens / max(row.seconds, 1e-9),
        "speed/sent_bytes": float(row.bytes_sent),
    }
    if row.tokens:  # else nothing was learned, and there is no loss
        found["train/loss"] = row.loss
    if row.predicted_seconds is not None:
        found["speed/predicted_step_seconds"] = row.predicted_seconds
    if row.eval_loss is not None:
        found["eval/loss"] = row.eval_loss
    for one in row.sets:
        values = {"loss": one.loss, "perplexity": one.perplexity, "accuracy": one.accuracy}
        found |= {f"eval/{one.name}/{name}": value for name, value in values.items()}
    return found


class BoardFeed:
    """Feed of one run's `metrics.jsonl` to boards."""

    def __init__(self, folder: Path, boards: Sequence[Board]) -> None:
        """Write nothing before `look`.

        Args:
            folder: the state folder.
        """
        self._file, self._boards = GrowingFile(folder / "metrics.jsonl"), list(boards)
        self._known: list[tuple[int, int]] = []
        """Step of each line that was written to the boards, and a hash of the line."""
        self._read = 0
        """Lines of the file that were read, since it began anew."""

    async def run(self) -> None:
        """Write what comes, until cancelled; then end the boards' logs."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self.look()
            self._tell(lambda board: board.close())

    def look(self) -> None:
        """Write the steps that are new, those too that have come in the place of others."""
        is_anew, lines = self._file.look()
        if is_anew:
            self._read = 0
        is_written = False
        for line in lines:
            is_written |= self._take(line)
        if is_written:
            self._tell(lambda board: board.flush())

    def _take(self, line: bytes) -> bool:
        """Write a line's step, unless the boards have it; whether that was done."""
        row = _row(line)
        if row is None:
            return False
        known, self._read = (row.step, hash(line)), self._read + 1
        if len(self._known) >= self._read:
            if self._known[self._read - 1] == known:
                return False
            del self._known[self._read - 1 :]
            last = self._known[-1][0] if self._known else 0
            self._tell(lambda board: board.go_back(last))
        self._known.append(known)
        self._tell(lambda board: board.write(row))
        return True

    def _tell(self, act: Callable[[Board], None]) -> None:
        """Have each board do something; one that fails is said, and does nothing more."""
        for board in tuple(self._boards):
            try:
                act(board)
            except Exception as error:  # noqa: BLE001 - whatever a board's package raises, training goes on
                log.warning("%s is written no more: %s", type(board).__name__, error)
                self._boards.remove(board)


def _row(line: bytes) -> StepMetrics | None:
    try:
        return StepMetrics.model_validate_json(line)
    except ValidationError:
        return None
