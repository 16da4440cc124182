"""The timeline of a run: the file in which each node keeps what it did and when.

The file is in Chrome's JSON array format ("Trace Event Format"), which Perfetto opens as it is. One event a line: the
header, which says whose file it is and when its clock showed zero, the names of lanes, and the spans. The format lets
the array's end be missing, so what a killed node leaves behind is still a trace.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, get_args

from pydantic import Field, TypeAdapter, ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.schema import Schema, first_fault

Lane = Literal["compute", "send", "receive", "wait", "all-reduce", "optimizer"]
"""The kind of work that a node does during a span."""
LANES: tuple[Lane, ...] = get_args(Lane)
"""The lanes in the order in which they are shown, from top to bottom."""

FILES = "node-*.json"
"""Pattern that the names of nodes' files match."""
LARGEST_FILE = 256 << 20
"""Bytes of a node's largest file: about a million spans. The writer ends there, and the reader takes no larger one."""
LONGEST_LINE = 16 << 10
"""Bytes of the longest line, which is one event."""
OPENING = "[\n"
"""First line of a file, which opens the JSON array."""
CLOSING = "]"
"""Last line of a file that was written to its end; no newline follows, because some readers stumble over one."""

_HEADER = "dtfm_node"

_Text = Annotated[str, Field(max_length=200, pattern=r"^[ -~]*$")]
"""Printable ASCII text: what is shown to people comes from other people's machines."""
_Key = Annotated[str, Field(max_length=40, pattern=r"^[ -~]+$")]
_Microseconds = Annotated[float, Field(ge=0, le=1e15)]
_Integer = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]


class TraceHeader(Schema):
    """The header of a node's file: whose it is, and how its clock relates to others'."""

    format: Literal[1] = 1
    peer: Annotated[str, Field(max_length=128, pattern=r"^[!-~]+$")]
    label: Annotated[str, Field(max_length=64, pattern=r"^[!-~]+$")]
    """The peer's name for people."""
    wall: Annotated[float, Field(ge=-4e9, le=4e9)]
    """Unix seconds at zero of the monotonic clock by which spans are measured. Within these bounds, nanoseconds
    between any two nodes' clocks fit into 64 bits."""
    pid: Annotated[int, Field(ge=0, lt=1 << 32)]


class TraceSpan(NamedTuple):
    """A span of a node's work from `begin` to `end`, in nanoseconds of its own monotonic clock; `begin <= end`."""

    lane: Lane
    name: str
    begin: int
    end: int
    args: dict[str, str | int]
    """Details; of a send or a receive: peer (the other end), kind, step, index, group, and plan, together unique."""


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """The contents of one node's file."""

    path: Path
    header: TraceHeader
    spans: tuple[TraceSpan, ...]
    whole: bool
    """Whether the file was written to its end; if not, the node was killed, or is still writing."""


class Rows:
    """The rows of a lane, over which its spans are spread: events of one Chrome thread must not overlap."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def place(self, begin: int, end: int) -> int:
        """Take the first row that is free from `begin` until `end`, in nanoseconds; return its number, from 0."""
        for row, taken_until in enumerate(self._ends):
            if taken_until <= begin:
                self._ends[row] = end
                return row
        self._ends.append(end)
        return len(self._ends) - 1


def file_name(peer: str, number: int) -> str:
    """Return the name of a peer's file; `number` counts its restarts from 1."""
    return f"node-{short(peer)}.json" if number == 1 else f"node-{short(peer)}-{number}.json"


def header_events(header: TraceHeader) -> Iterator[str]:
    """Yield the events that a node's file begins with, each as JSON."""
    yield metadata_event(_HEADER, header.pid, header.pid, header.model_dump())
    yield metadata_event("process_name", header.pid, header.pid, {"name": f"node {header.label}"})


def lane_events(lane: Lane, row: int, pid: int, tid: int) -> Iterator[str]:
    """Yield the events that make thread `tid` the row `row` of a lane, each as JSON."""
    yield metadata_event("thread_name", pid, tid, {"name": lane if row == 0 else f"{lane} {row + 1}"})
    yield metadata_event("thread_sort_index", pid, tid, {"sort_index": LANES.index(lane) * 10_000 + row})


def metadata_event(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    """Encode a metadata event as JSON."""
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}, separators=(",", ":"))


def span_event(span: TraceSpan, pid: int, tid: int) -> str:
    """Encode a span as a complete event in JSON; by hand, at a quarter of `json.dumps`'s time: there are many."""
    args = ",".join(
        f"{_quoted(key)}:{_quoted(value) if isinstance(value, str) else int(value)}" for key, value in span.args.items()
    )
    return (
        f'{{"ph":"X","name":{_quoted(span.name)},"cat":"{span.lane}","ts":{span.begin / 1000},'
        f'"dur":{(span.end - span.begin) / 1000},"pid":{pid},"tid":{tid},"args":{{{args}}}}}'
    )


@lru_cache(4096)
def _quoted(text: str) -> str:
    return json.dumps(text)


class _Metadata(Schema):
    ph: Literal["M"]
    name: _Text
    pid: _Integer
    tid: _Integer
    args: Annotated[dict[_Key, _Integer | float | _Text], Field(max_length=16)]


class _Complete(Schema):
    ph: Literal["X"]
    name: _Text
    cat: Lane
    ts: _Microseconds
    dur: _Microseconds
    pid: _Integer
    tid: _Integer
    args: Annotated[dict[_Key, _Integer | _Text], Field(max_length=16)] = Field(default_factory=dict)


_EVENT: TypeAdapter[_Metadata | _Complete] = TypeAdapter(Annotated[_Metadata | _Complete, Field(discriminator="ph")])


def read_trace(path: Path) -> NodeTrace:
    """Read one node's file. Where it ends in the middle of a line, what is whole is taken.

    Raises:
        UserError: unreadable, too large, or not a node's trace; file, line and fault are named.
    """
    try:
        if not path.is_file():
            raise UserError(f"cannot read the trace {path}: {'it is no file' if path.exists() else 'it is not there'}")
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(
                f"the trace {path} has more than {bytes_in_words(LARGEST_FILE)}: no node writes one so large"
            )
        with path.open("rb") as file:
            return _read(file, path)
    except OSError as error:
        raise UserError(f"cannot read the trace {path}: {error.strerror}") from None


def _read(file: BinaryIO, path: Path) -> NodeTrace:
    header: TraceHeader | None = None
    spans: list[TraceSpan] = []
    closed = False
    for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), 1):
        text = line.strip()
        if number == 1 and text != OPENING.strip().encode():
            break
        if number == 1 or not text:
            continue
        if closed:
            raise UserError(f"the trace {path} goes on after its end, at line {number}: give each node's file alone")
        if text == CLOSING.encode():
            closed = True
            continue
        try:
            event = _EVENT.validate_json(text.removesuffix(b","))
            if header is None:
                if event.name != _HEADER or isinstance(event, _Complete):
                    break
                header = TraceHeader.model_validate(event.args)
            elif isinstance(event, _Complete):
                spans.append(_span(event))
        except ValidationError as error:
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                break  # torn: the node was killed while it wrote this
            raise UserError(f"cannot use the trace {path}: line {number}: {first_fault(error)[:200]}") from None
    if header is None:
        raise UserError(f"{path} is not a node's trace: give what `dtfm-node join --trace` has written")
    return NodeTrace(path, header, tuple(spans), closed)


def _span(event: _Complete) -> TraceSpan:
    begin = round(event.ts * 1000)
    return TraceSpan(event.cat, event.name, begin, begin + round(event.dur * 1000), event.args)
