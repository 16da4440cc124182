"""Command `trace`: merges the nodes' files into one timeline, and says what came of it."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dtfm_coordinator.tools.trace.aligned_traces import AlignedTraces, read_aligned
from dtfm_coordinator.tools.trace.chrome_format import events


def merge(given: Sequence[Path], out: Path) -> tuple[str, str]:
    """Return the merged timeline, to be written to `out`, and a line that says what it holds.

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
    return f'{{"traceEvents":[\n{lines}\n],"metadata":{json.dumps(metadata)}}}', _said(found)


def _said(found: AlignedTraces) -> str:
    nodes = len({trace.header.peer for trace in found.traces})
    spans = sum(len(trace.spans) for trace in found.traces)
    last = max(
        span.end + shift for trace, shift in zip(found.traces, found.shifts, strict=True) for span in trace.spans
    )
    parts = [f"{nodes} node{'s' * (nodes != 1)}, {spans:,} span{'s' * (spans != 1)}, {last / 1e9:.1f} s"]
    parts += found.clocks_in_words()
    if torn := [number for number, trace in enumerate(found.traces) if not trace.whole]:
        parts.append(f"{found.labels(torn)} without an end, as of a node that was killed")
    return "; ".join(parts)
