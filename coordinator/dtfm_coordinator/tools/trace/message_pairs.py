"""Pairing of messages: which receive belongs to which send. Pure."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from dtfm_protocol.process.trace_format import NodeTrace

KEY = ("plan", "kind", "step", "index", "group")
"""Labels of a span by which messages from one peer to another are told apart; a missing label counts as the same."""

Place = tuple[int, int]
"""Place of a span: the number of its trace, and its own in there."""


class MatchedMessage(NamedTuple):
    """Send and receive of one message."""

    send: Place
    receive: Place


def matched(traces: Sequence[NodeTrace]) -> list[MatchedMessage]:
    """Return the messages of which both ends are known, by sender.

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
    """Return the least seconds from a send's begin to its receive's end, by sender's and receiver's trace.

    Each end is by its own clock. What is in them besides the clocks' difference is never negative, and least in the
    smallest messages.
    """
    least: dict[tuple[int, int], int] = {}
    for send, receive in messages:
        pair = (send[0], receive[0])
        flight = traces[pair[1]].spans[receive[1]].end - traces[pair[0]].spans[send[1]].begin
        least[pair] = min(flight, least.get(pair, flight))
    return {pair: flight / 1e9 for pair, flight in least.items()}
