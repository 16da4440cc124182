"""Command `trace`: reads the nodes' files, aligns their clocks, says what came of it."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dtfm_coordinator.tools.formatting import seconds
from dtfm_coordinator.tools.trace.chrome_format import events
from dtfm_coordinator.tools.trace.clock_alignment import Clocks, align
from dtfm_coordinator.tools.trace.message_pairs import MatchedMessage, least_flights, matched
from dtfm_coordinator.tools.trace.step_medians import STEP_LANES, StepMedians, step_medians
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.trace_format import FILES, NodeTrace, read_trace

LATE_NS = 1000
"""Nanoseconds by which a message must arrive before its send to be counted: below, it is rounding."""


def merge(given: Sequence[Path], out: Path) -> tuple[str, str, tuple[StepMedians, ...]]:
    """Return the merged timeline, to be written to `out`, a line that says what it holds, and each node's medians.

    Args:
    given: nodes' files, and folders of them.

    Raises:
    UserError: there are no files, or some are no traces, or they do not go together.
    """
    with Console(stderr=True).status("reading the traces") as progress:
        traces = [read_trace(path) for path in _files(given, out)]
        _check(traces)
        progress.update("aligning the clocks")
        messages = matched(traces)
        walls = [trace.header.wall for trace in traces]
        clocks = align(walls, least_flights(traces, messages))
        shifts = [
            round((wall - walls[0] + correction) * 1e9)
            for wall, correction in zip(walls, clocks.corrections, strict=True)
        ]
        first = min(span.begin + shift for trace, shift in zip(traces, shifts, strict=True) for span in trace.spans)
        shifts = [shift - first for shift in shifts]
        progress.update("merging")
        lines = ",\n".join(events(traces, shifts, messages))
    late = _late(traces, shifts, messages)
    metadata = {
        "began": walls[0] + first / 1e9,
        "messages": len(messages),
        "messages_that_end_before_they_begin": len(late),
        "contradiction_seconds": clocks.contradiction,
        "traces": [
            {
                "peer": trace.header.peer,
                "file": trace.path.name,
                "whole": trace.whole,
                "clock_correction_seconds": correction,
                "uncertainty_seconds": None if uncertainty == float("inf") else uncertainty,
            }
            for trace, correction, uncertainty in zip(traces, clocks.corrections, clocks.uncertainties, strict=True)
        ],
    }
    # Without a newline at the end: some readers stumble over one.
    text = f'{{"traceEvents":[\n{lines}\n],"metadata":{json.dumps(metadata)}}}'
    return text, _said(traces, shifts, messages, clocks, late), step_medians(traces)


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


def _files(given: Sequence[Path], out: Path) -> list[Path]:
    """Return the files of traces, each once."""
    files: dict[Path, Path] = {}
    for path in given:
        if path.is_dir():
            found = sorted(path.glob(FILES))
            if not found:
                raise UserError(f"{path} holds no {FILES}: give the folder that `dtfm-node join --trace` wrote to")
        else:
            found = [path]
        for file in found:
            files.setdefault(file.resolve(), file)
    if out.resolve() in files:
        raise UserError(f"--out {out} is one of the traces that are merged: write to another file")
    return list(files.values())


def _check(traces: Sequence[NodeTrace]) -> None:
    """Check that a peer runs once at a time, and that some peer has done something."""
    lives: dict[str, list[tuple[float, float, Path]]] = {}
    for trace in traces:
        if trace.spans:
            begin = trace.header.wall + min(span.begin for span in trace.spans) / 1e9
            end = trace.header.wall + max(span.end for span in trace.spans) / 1e9
            lives.setdefault(trace.header.peer, []).append((begin, end, trace.path))
    if not lives:
        raise UserError("the traces hold no spans: nobody has trained yet")
    for runs in lives.values():
        for (_, end, one), (begin, _, other) in pairwise(sorted(runs)):
            if begin < end:
                raise UserError(f"{one} and {other} are of the same node at the same time: give one of them")


def _late(traces: Sequence[NodeTrace], shifts: Sequence[int], messages: Sequence[MatchedMessage]) -> list[int]:
    """Return the nanoseconds by which messages still end before they begin, of those that do."""
    flights = (
        traces[receive[0]].spans[receive[1]].end
        + shifts[receive[0]]
        - traces[send[0]].spans[send[1]].begin
        - shifts[send[0]]
        for send, receive in messages
    )
    return [-flight for flight in flights if flight < -LATE_NS]


def _said(
    traces: Sequence[NodeTrace],
    shifts: Sequence[int],
    messages: Sequence[MatchedMessage],
    clocks: Clocks,
    late: Sequence[int],
) -> str:
    nodes = len({trace.header.peer for trace in traces})
    spans = sum(len(trace.spans) for trace in traces)
    last = max(span.end + shift for trace, shift in zip(traces, shifts, strict=True) for span in trace.spans)
    parts = [f"{nodes} node{'s' * (nodes != 1)}, {spans:,} span{'s' * (spans != 1)}, {last / 1e9:.1f} s"]
    tied = clocks.groups[0] if len(clocks.groups[0]) > 1 else ()
    if tied:
        most = max(tied, key=lambda number: abs(clocks.corrections[number]))
        correction, uncertainty = abs(clocks.corrections[most]), clocks.uncertainties[most]
        parts.append(f"clocks corrected by up to {seconds(correction)} (+- {seconds(uncertainty)})")
    if loose := [number for number in range(len(traces)) if number not in tied]:
        parts.append(f"{_labels(traces, loose)} placed by wall clock alone: no messages there and back")
    if late:
        parts.append(
            f"{len(late):,} of {len(messages):,} messages still end before they begin, by up to "
            f"{seconds(max(late) / 1e9)}: clocks have drifted"
        )
    if torn := [number for number, trace in enumerate(traces) if not trace.whole]:
        parts.append(f"{_labels(traces, torn)} without an end: killed, or still running")
    return "; ".join(parts)


def _labels(traces: Sequence[NodeTrace], numbers: Sequence[int]) -> str:
    names = list(dict.fromkeys(traces[number].header.label for number in numbers))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
