"""The file `metrics.jsonl`: one row a committed step, exactly once, in order."""

import json
import os
from pathlib import Path

from pydantic import ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.process.state_dir import write_atomically


class MetricsFile:
    """The writer of `metrics.jsonl`. What is on disk is always the history of the state in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last = 0
        """The newest step on disk; 0 when there is none."""
        rows = self.rows()
        if rows:
            self.last = rows[-1].step
        self._mended = False

    def rows(self) -> list[StepMetrics]:
        """Read the rows on disk up to the first that is torn or out of order."""
        found: list[StepMetrics] = []
        if not self._path.exists():
            return found
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = StepMetrics.model_validate_json(line)
            except ValidationError:
                break
            if row.step <= (found[-1].step if found else 0):
                break
            found.append(row)
        return found

    def append(self, row: StepMetrics, after: int = 0) -> bool:
        """Write the next row; return False for one that is there already, or whose predecessor is not.

        Args:
            after: the step up to which rows may be lacking: those who had them are gone.

        Raises:
            UserError: the disk is full.
        """
        if row.step <= self.last or row.step > max(self.last, after) + 1:
            return False
        if not self._mended:  # a last row that a crash has torn would spoil this one
            self.forget_after(self.last)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.model_dump(mode="json")) + "\n")
        except OSError as error:
            self._mended = False
            raise UserError(f"cannot write {self._path}: {error.strerror}") from None
        self.last = row.step
        return True

    def sync(self) -> None:
        """Flush what was appended to the disk, so that it survives a power cut."""
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def forget_after(self, step: int) -> None:
        """Drop the rows after `step`: the state they led to is gone, and those steps run again."""
        self._mended = True
        rows = [row for row in self.rows() if row.step <= step]
        text = "".join(json.dumps(row.model_dump(mode="json")) + "\n" for row in rows)
        if self._path.exists() and self._path.read_text(encoding="utf-8", errors="replace") != text:
            write_atomically(self._path, text)
        self.last = rows[-1].step if rows else 0
