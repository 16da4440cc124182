"""Chrome's trace format ("Trace Event Format") of the merged timeline, as Perfetto reads it. Pure.

A node is a process, a row of a lane a thread, a message an arrow. Two habits of Perfetto are minded: it knows threads
by their number alone, whichever process they are of, and it takes an arrow's ends to be on the span of the thread that
began last.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from dtfm_coordinator.tools.trace.message_pairs import MatchedMessage, Place
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.trace_format import (
    LANES,
    NodeTrace,
    Rows,
    TraceSpan,
    lane_events,
    metadata_event,
    span_event,
)

MOST_ROWS = 4096
"""Number of spans, at most, of one lane of one node at the same time: more than any swarm has peers to send to."""


class Drawn(NamedTuple):
    """Process, thread and times at which a span was drawn; nanoseconds of the merged timeline."""

    pid: int
    tid: int
    begin: int
    end: int


def events(traces: Sequence[NodeTrace], shifts: Sequence[int], messages: Sequence[MatchedMessage]) -> Iterator[str]:
    """Yield the events as JSON: names, then all spans, then the arrows.

    Args:
        shifts: nanoseconds to add to each trace's clock; no time may become negative.

    Raises:
        UserError: more spans of a lane at once than any node has.
    """
    labels = {trace.header.peer: trace.header.label for trace in traces}
    tids = count(len(labels) + 1)  # above all process numbers, so that no thread is taken for a process's first
    ends = {place for message in messages for place in message}
    drawn: dict[Place, Drawn] = {}
    for pid, (label, peer) in enumerate(sorted((label, peer) for peer, label in labels.items()), 1):
        yield metadata_event("process_name", pid, pid, {"name": f"node {label}"})
        yield metadata_event("process_sort_index", pid, pid, {"sort_index": pid})
        own = [number for number, trace in enumerate(traces) if trace.header.peer == peer]
        for lane in LANES:
            rows, threads = Rows(), list[int]()
            spans = sorted(
                (span.begin + shifts[number], span.end + shifts[number], (number, index))
                for number in own
                for index, span in enumerate(traces[number].spans)
                if span.lane == lane
            )
            for begin, end, place in spans:
                end = max(end, begin + 1)
                row = rows.place(begin, end)
                if row == len(threads):
                    if row == MOST_ROWS:
                        raise UserError(f"{traces[place[0]].path}: more than {MOST_ROWS} spans of {lane} at once")
                    threads.append(next(tids))
                    yield from lane_events(lane, row, pid, threads[row])
                _, name, _, _, args = traces[place[0]].spans[place[1]]
                if place in ends:
                    drawn[place] = Drawn(pid, threads[row], begin, end)
                yield span_event(TraceSpan(lane, name, begin, end, args), pid, threads[row])
    for number, message in enumerate(messages, 1):
        yield from _arrow(number, drawn[message.send], drawn[message.receive])


def _arrow(number: int, send: Drawn, receive: Drawn) -> Iterator[str]:
    """Yield the two events of an arrow from the begin of the send to the receive; none that goes back in time."""
    head = max(send.begin, receive.begin)
    if head < receive.end:
        arrow = f'"name":"message","cat":"message","id":{number}'
        yield f'{{"ph":"s",{arrow},"ts":{send.begin / 1000},"pid":{send.pid},"tid":{send.tid}}}'
        yield f'{{"ph":"f","bp":"e",{arrow},"ts":{head / 1000},"pid":{receive.pid},"tid":{receive.tid}}}'
