"""Command `trace`: merges the nodes' files into one timeline, and says what came of it."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dtfm_coordinator.tools.formatting import seconds
from dtfm_coordinator.tools.trace.aligned_traces import AlignedTraces, read_aligned
from dtfm_coordinator.tools.trace.chrome_format import events
from dtfm_coordinator.tools.trace.step_medians import STEP_LANES, StepMedians, step_medians


def merge(given: Sequence[Path], out: Path) -> tuple[str, str, tuple[StepMedians, ...]]:
    """Return the merged timeline, to be written to `out`, a line that says what it holds, and each node's medians.

    Args:
        given: nodes' files, and folders of them.

    Raises:
        UserError: there are no files, or some are no traces, or they do not go together.
    """
    with Console(stderr=True).status("reading the traces") as progress:
        found = read_aligned(given, out, progress.update)
        progress.update("merging")
        lines = ",\n".join(events(found.traces, found.shifts, found.messages))
    clocks = found.clocks
    metadata = {
        "began": found.began,
        "messages": len(found.messages),
        "messages_that_end_before_they_begin": len(found.late()),
        "contradiction_seconds": clocks.contradiction,
        "traces": [
            {
                "peer": trace.header.peer,
                "file": trace.path.name,
                "whole": trace.whole,
                "clock_correction_seconds": correction,
                "uncertainty_seconds": None if uncertainty == float("inf") else uncertainty,
            }
            for trace, correction, uncertainty in zip(
                found.traces, clocks.corrections, clocks.uncertainties, strict=True
            )
        ],
    }
    # Without a newline at the end: some readers stumble over one.
    text = f'{{"traceEvents":[\n{lines}\n],"metadata":{json.dumps(metadata)}}}'
    return text, _said(found), step_medians(found.traces)


def medians_table(nodes: Sequence[StepMedians]) -> Table:
    """Return a table of what nodes' steps are made of, a row for each node."""
    table = Table(
        "node", "steps", "a step", *STEP_LANES, "rest", title="medians of a step", title_justify="left",
        caption="rest: votes, commit, others' end; all-reduce may overlap compute",
        caption_justify="left",
    )  # fmt: skip
    for node in nodes:
        lanes = (seconds(node.lanes[lane]) for lane in STEP_LANES)
        table.add_row(node.label, str(node.steps), seconds(node.step), *lanes, seconds(node.rest))
    return table


def _said(found: AlignedTraces) -> str:
    nodes = len({trace.header.peer for trace in found.traces})
    spans = sum(len(trace.spans) for trace in found.traces)
    last = max(
        span.end + shift for trace, shift in zip(found.traces, found.shifts, strict=True) for span in trace.spans
    )
    parts = [f"{nodes} node{'s' * (nodes != 1)}, {spans:,} span{'s' * (spans != 1)}, {last / 1e9:.1f} s"]
    parts += found.clocks_in_words()
    if torn := [number for number, trace in enumerate(found.traces) if not trace.whole]:
        parts.append(f"{found.labels(torn)} without an end: killed, or still running")
    return "; ".join(parts)
