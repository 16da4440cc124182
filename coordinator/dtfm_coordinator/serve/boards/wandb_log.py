"""Log of a run for Weights & Biases, kept on this machine: `wandb sync` sends it, if the owner wants that."""

import os
from pathlib import Path
from typing import Any

from dtfm_coordinator.serve.boards.board_feed import scalars
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.step_metrics import StepMetrics


class WandbLog:
    """Log of one run. Nothing leaves this machine unless the environment says `WANDB_MODE=online`."""

    def __init__(self, folder: Path, project: str, swarm: str, name: str) -> None:
        """Begin to write to `folder`.

        Args:
            project: where the run will be found.
            swarm: id of the run, the same after a restart.
            name: the job's name.

        Raises:
            UserError: the package does not begin.
        """
        import wandb  # only who asks for it has it

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        try:
            self._run = wandb.init(
                project=project, id=swarm, name=name, dir=str(folder), mode=mode, resume="allow",
                settings=wandb.Settings(silent=True),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - it is a package of many parts, and all that it cannot do is said
            raise UserError(f"--wandb: cannot begin: {error}") from None
        # By a step of their own, for a run may go back, which wandb's own count does not.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, row: StepMetrics) -> None:
        """Write a step, as `Board.write`."""
        self._run.log({"step": row.step, **scalars(row)})

    def go_back(self, step: int) -> None:
        """Do nothing, as `Board.go_back`: points of steps that are run again stand beside the earlier ones."""

    def flush(self) -> None:
        """Do nothing: what is logged is on the disk soon. As `Board.flush`."""

    def close(self) -> None:
        """End the log, as `Board.close`."""
        self._run.finish()
