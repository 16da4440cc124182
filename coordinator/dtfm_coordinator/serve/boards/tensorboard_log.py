"""Log of a run for TensorBoard."""

from pathlib import Path

from dtfm_coordinator.serve.boards.board_feed import scalars
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.step_metrics import StepMetrics


class TensorBoardLog:
    """Log of one run in TensorBoard's event files."""

    def __init__(self, folder: Path) -> None:
        """Begin to write to `folder`, which is made where it is not there.

        Raises:
            UserError: the folder cannot be written.
        """
        from torch.utils.tensorboard import SummaryWriter  # a second of imports that only this needs

        self._folder, self._make = folder, SummaryWriter
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = SummaryWriter(str(folder))
        except OSError as error:
            raise UserError(f"--tensorboard: cannot write to {folder}: {error.strerror}") from None

    def write(self, row: StepMetrics) -> None:
        """Write a step, as `Board.write`."""
        for name, value in scalars(row).items():
            self._writer.add_scalar(name, value, row.step, walltime=row.at)

    def go_back(self, step: int) -> None:
        """Have TensorBoard leave out what follows `step`, as `Board.go_back`."""
        self._writer.close()
        self._writer = self._make(str(self._folder), purge_step=step + 1)

    def flush(self) -> None:
        """Write to the disk, as `Board.flush`."""
        self._writer.flush()

    def close(self) -> None:
        """End the log, as `Board.close`."""
        self._writer.close()
