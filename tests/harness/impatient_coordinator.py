"""A coordinator that waits seconds for shares of a checkpoint, and not minutes: the program `impatient-coordinator`."""

from dataclasses import replace
from functools import partialmethod

from dtfm_coordinator.main import main as coordinator
from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_protocol.process.timeouts import TIMEOUTS

IMPATIENT = replace(TIMEOUTS, checkpoint_confirm=5.0, checkpoint_share=10.0)


def main() -> None:
    """The command line of an impatient coordinator."""
    patient = CheckpointCollector.__init__
    CheckpointCollector.__init__ = partialmethod(patient, timeouts=IMPATIENT)  # type: ignore[assignment, method-assign]
    coordinator()


if __name__ == "__main__":
    main()
