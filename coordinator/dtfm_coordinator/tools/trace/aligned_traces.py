"""Traces of a swarm's nodes on one clock: reads their files, and aligns them by the messages between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dtfm_coordinator.tools.formatting import seconds
from dtfm_coordinator.tools.trace.clock_alignment import Clocks, align
from dtfm_coordinator.tools.trace.message_pairs import MatchedMessage, least_flights, matched
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.trace_format import FILES, NodeTrace, read_trace

LATE_NS = 1000
"""Nanoseconds by which a message must arrive before its send to be counted: below, it is rounding."""
MOST_NAMED = 5
"""Number of nodes that a line names."""


@dataclass(frozen=True, slots=True)
class AlignedTraces:
    """Traces of nodes, and what puts them on one clock, which shows 0 when the first span of all begins."""

    traces: tuple[NodeTrace, ...]
    shifts: tuple[int, ...]
    """Nanoseconds to add to each trace's clock."""
    began: float
    """Unix seconds at zero, by the first trace's machine."""
    messages: tuple[MatchedMessage, ...]
    clocks: Clocks

    def late(self) -> list[int]:
        """Return the nanoseconds by which messages still end before they begin, of those that do."""
        flights = (
            self.traces[receive[0]].spans[receive[1]].end
            + self.shifts[receive[0]]
            - self.traces[send[0]].spans[send[1]].begin
            - self.shifts[send[0]]
            for send, receive in self.messages
        )
        return [-flight for flight in flights if flight < -LATE_NS]

    def tied(self) -> tuple[int, ...]:
        """Return the numbers of the traces whose clocks messages tie together: the largest group; () for none."""
        return self.clocks.groups[0] if len(self.clocks.groups[0]) > 1 else ()

    def uncertainty(self) -> float:
        """Return the seconds by which two clocks may differ still, of those that messages tie together; 0 for none."""
        return max((self.clocks.uncertainties[number] for number in self.tied()), default=0.0)

    def clocks_in_words(self) -> list[str]:
        """Return how well the clocks are known, in parts of a sentence."""
        parts, tied, late = [], self.tied(), self.late()
        if tied:
            most = max(abs(self.clocks.corrections[number]) for number in tied)
            parts.append(
                f"clocks corrected by up to {seconds(most)}, each known to +- {seconds(self.uncertainty())}: "
                "compare two nodes' spans no closer than that"
            )
        if loose := [number for number in range(len(self.traces)) if number not in tied]:
            parts.append(f"{self.labels(loose)} placed by wall clock alone: no messages there and back")
        if late:
            parts.append(
                f"{len(late):,} of {len(self.messages):,} messages still end before they begin, by up to "
                f"{seconds(max(late) / 1e9)}: clocks have drifted"
            )
        return parts

    def labels(self, numbers: Sequence[int]) -> str:
        """Return the names of the nodes whose traces have these numbers, some of them where there are many."""
        names = list(dict.fromkeys(self.traces[number].header.label for number in numbers))
        return ", ".join(names[:MOST_NAMED]) + (
            f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        )


def read_aligned(
    given: Sequence[Path], out: Path | None = None, begins: Callable[[str], None] = lambda _: None
) -> AlignedTraces:
    """Read nodes' traces, and align their clocks.

    Args:
        given: nodes' files, and folders of them.
        out: file that is going to be written, and must be none of them.
        begins: called with what is begun, for people.

    Raises:
        UserError: there are no files, or some are no traces, or they do not go together.
    """
    begins("reading the traces")
    traces = tuple(read_trace(path) for path in _files(given, out))
    _check(traces)
    begins("aligning the clocks")
    messages = tuple(matched(traces))
    walls = [trace.header.wall for trace in traces]
    clocks = align(walls, least_flights(traces, messages))
    shifts = [
        round((wall - walls[0] + correction) * 1e9) for wall, correction in zip(walls, clocks.corrections, strict=True)
    ]
    first = min(span.begin + shift for trace, shift in zip(traces, shifts, strict=True) for span in trace.spans)
    return AlignedTraces(traces, tuple(shift - first for shift in shifts), walls[0] + first / 1e9, messages, clocks)


def _files(given: Sequence[Path], out: Path | None) -> list[Path]:
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
    if out is not None and out.resolve() in files:
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
