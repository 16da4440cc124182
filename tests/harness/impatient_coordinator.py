"""A coordinator that waits seconds for shares of a checkpoint, and not minutes: `python -m
tests.harness.impatient_coordinator serve ...`."""

from dataclasses import replace
from functools import partialmethod

from dtfm_coordinator.main import main
from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_protocol.process.timeouts import TIMEOUTS

IMPATIENT = replace(TIMEOUTS, checkpoint_confirm=5.0, checkpoint_share=10.0)

if __name__ == "__main__":
    patient = CheckpointCollector.__init__
    CheckpointCollector.__init__ = partialmethod(patient, timeouts=IMPATIENT)  # type: ignore[assignment, method-assign]
    main()
