"""What `dtfm-coordinator report` reads, and where it writes."""

import time
from pathlib import Path

from dtfm_coordinator.tools.report.report_page import page
from dtfm_coordinator.tools.report.run_facts import RunFacts
from dtfm_protocol.process.state_dir import write_atomically


def write_report(state_dir: Path, out: Path) -> str:
    """Write the report of a run to `out`; return what was written, in a line. A coordinator may be running.

    Raises:
        UserError: there is no run, or `out` cannot be written.
    """
    facts = RunFacts.of(state_dir)
    write_atomically(out, page(facts, time.time()))
    last = facts.rows[-1].step if facts.rows else 0
    return f"wrote the report of {facts.job.name}, up to step {last}, to {out}"
