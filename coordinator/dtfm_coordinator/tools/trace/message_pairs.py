"""Which receive belongs to which send. Pure."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from dtfm_protocol.process.trace_format import NodeTrace

KEY = ("plan", "kind", "step", "index", "group")
"""What tells the messages from one peer to another apart; what a span does not say counts as the same."""

Place = tuple[int, int]
"""A span: the number of its trace, and its own in there."""


class MatchedMessage(NamedTuple):
    """A send and its receive."""

    send: Place
    receive: Place


def matched(traces: Sequence[NodeTrace]) -> list[MatchedMessage]:
    """The messages of which both ends are known, by sender.

    A key that occurs twice on a side, as where a step ran again and spans do not say under which plan, matches nothing:
    a send must not be taken for one of another time.
    """
    sends: defaultdict[Hashable, list[Place]] = defaultdict(list)
    receives: defaultdict[Hashable, list[Place]] = defaultdict(list)
    for number, trace in enumerate(traces):
        me = trace.header.peer
        for index, span in enumerate(trace.spans):
            other = span.args.get("peer")
            if other is None or other == me:
                continue
            rest = [span.args.get(name) for name in KEY]
            if span.lane == "send":
                sends[(me, other, *rest)].append((number, index))
            elif span.lane == "receive":
                receives[(other, me, *rest)].append((number, index))
    return [
        MatchedMessage(places[0], receives[key][0])
        for key, places in sends.items()
        if len(places) == 1 and len(receives.get(key, ())) == 1
    ]


def least_flights(traces: Sequence[NodeTrace], messages: Iterable[MatchedMessage]) -> dict[tuple[int, int], float]:
    """By sender's and receiver's trace, the least seconds from a send's begin to its receive's end.

    Each end is by its own clock. What is in them besides the clocks' difference is never negative, and least in the
    smallest messages.
    """
    least: dict[tuple[int, int], int] = {}
    for send, receive in messages:
        pair = (send[0], receive[0])
        flight = traces[pair[1]].spans[receive[1]].end - traces[pair[0]].spans[send[1]].begin
        least[pair] = min(flight, least.get(pair, flight))
    return {pair: flight / 1e9 for pair, flight in least.items()}
