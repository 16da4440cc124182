"""Medians of what each node's steps are made of: seconds computed, waited, reduced and updated. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from dtfm_protocol.process.trace_format import Lane, NodeTrace, TraceSpan

STEP_LANES: Final[tuple[Lane, ...]] = ("compute", "wait", "all-reduce", "optimizer")
"""Lanes of which a step is made: sends and receives go on beside them."""
EVALUATES: Final = "evaluate"
"""First word of spans that compute but belong to no step's training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMedians:
    """Medians over the steps of one node, each in seconds."""

    peer: str
    label: str
    steps: int
    """Number of steps that the node has had a part in."""
    step: float
    """Seconds from the beginning of its first span of a step to the end of the last one."""
    lanes: dict[Lane, float]
    """Seconds in which at least one span of the lane was under way. All-reduce and compute may be at the same time."""
    rest: float
    """Seconds of a step in which none of them was: votes, the commit, waiting for others' all-reduce."""


def step_medians(traces: Sequence[NodeTrace]) -> tuple[StepMedians, ...]:
    """Return the medians of each node that has trained, in order of the traces; a node's restarts count together."""
    labels = {trace.header.peer: trace.header.label for trace in traces}
    steps: dict[str, list[list[TraceSpan]]] = {peer: [] for peer in labels}
    for trace in traces:
        steps[trace.header.peer] += _by_step(trace.spans)
    return tuple(_of(peer, labels[peer], theirs) for peer, theirs in steps.items() if theirs)


def _by_step(spans: Iterable[TraceSpan]) -> list[list[TraceSpan]]:
    found: defaultdict[int, list[TraceSpan]] = defaultdict(list)
    for span in spans:
        step = span.args.get("step")
        if isinstance(step, int) and span.lane in STEP_LANES and span.name.split(" ")[0] != EVALUATES:
            found[step].append(span)
    return list(found.values())


def _of(peer: str, label: str, steps: Sequence[Sequence[TraceSpan]]) -> StepMedians:
    whole = [(max(span.end for span in spans) - min(span.begin for span in spans)) / 1e9 for spans in steps]
    return StepMedians(
        peer=peer,
        label=label,
        steps=len(steps),
        step=median(whole),
        lanes={
            lane: median(_covered(span for span in spans if span.lane == lane) for spans in steps)
            for lane in STEP_LANES
        },
        rest=median(total - _covered(spans) for total, spans in zip(whole, steps, strict=True)),
    )


def _covered(spans: Iterable[TraceSpan]) -> float:
    """Return the seconds in which at least one of the spans was under way."""
    covered, until = 0, 0
    for begin, end in sorted((span.begin, span.end) for span in spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered / 1e9
