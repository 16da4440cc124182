"""Which way to a peer is tried next, by value; and what holds in every state that events can lead to."""

from dataclasses import replace

import pytest

from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.route import (
    BothSidesTried,
    EndpointLearned,
    Event,
    LookedAgain,
    Move,
    MoveFailed,
    Route,
    StreamOpened,
    StreamWanted,
    on,
)
from dtfm_protocol.transport.tls_connections import Endpoint

NOW = 100.0
HERE, THERE = (Endpoint(hosts=("192.0.2.1",), port=port) for port in (1, 2))
NEW = Route()
DIRECT = Route(endpoint=HERE, way="direct")
RELAYED = Route(endpoint=HERE, is_relayed=True)
DETOUR = replace(RELAYED, detour=NOW + 1.0, way="relayed")
PUNCHED = replace(RELAYED, detour=NOW + 1.0, is_punched=True, way="punched")
LATER = NOW + TIMEOUTS.detour


@pytest.mark.parametrize(
    ("route", "event", "after", "moves"),
    [
        # what is tried first
        (NEW, StreamWanted(NOW), NEW, [Move.DIAL]),
        (DIRECT, StreamWanted(NOW), DIRECT, [Move.DIAL]),
        (RELAYED, StreamWanted(NOW), RELAYED, [Move.DIAL]),
        (DETOUR, StreamWanted(NOW), DETOUR, [Move.LIBP2P]),
        (PUNCHED, StreamWanted(NOW), PUNCHED, [Move.PUNCH]),
        # once a detour is over, the known way still serves, while somebody looks for a better one
        (DETOUR, StreamWanted(LATER), replace(DETOUR, detour=LATER + 60.0), [Move.LOOK_AGAIN, Move.LIBP2P]),
        (PUNCHED, StreamWanted(NOW + 1.0), replace(PUNCHED, detour=NOW + 61.0), [Move.LOOK_AGAIN, Move.PUNCH]),
        # and what next
        (NEW, MoveFailed(Move.DIAL), NEW, [Move.LIBP2P]),
        (DIRECT, MoveFailed(Move.DIAL), DIRECT, [Move.LIBP2P]),
        (RELAYED, MoveFailed(Move.DIAL), RELAYED, [Move.PUNCH]),
        (replace(DIRECT, is_punched=True), MoveFailed(Move.DIAL), replace(DIRECT, is_punched=True), [Move.PUNCH]),
        (PUNCHED, MoveFailed(Move.PUNCH), replace(PUNCHED, is_punched=False), [Move.LIBP2P]),
        (DETOUR, MoveFailed(Move.LIBP2P), DETOUR, []),
        # a stream that stands
        (NEW, StreamOpened(Move.DIAL, "direct", NOW), Route(way="direct"), []),
        (RELAYED, StreamOpened(Move.PUNCH, "punched", NOW), replace(PUNCHED, detour=LATER), [Move.LOOK_AGAIN]),
        (RELAYED, StreamOpened(Move.LIBP2P, "relayed", NOW), replace(DETOUR, detour=LATER), [Move.LOOK_AGAIN]),
        (NEW, StreamOpened(Move.LIBP2P, "direct", NOW), Route(detour=LATER, way="direct"), []),
        (DETOUR, StreamOpened(Move.PUNCH, "punched", NOW), PUNCHED, []),
        (PUNCHED, StreamOpened(Move.LIBP2P, "relayed", NOW), replace(PUNCHED, way="relayed"), []),
        # what the peer says of itself
        (NEW, EndpointLearned(HERE, False, True), Route(endpoint=HERE), []),
        (NEW, EndpointLearned(HERE, True, True), RELAYED, []),
        (DETOUR, EndpointLearned(HERE, False, True), replace(DETOUR, is_relayed=False), []),
        (DETOUR, EndpointLearned(HERE, False, False), DETOUR, []),
        (DETOUR, EndpointLearned(THERE, False, False), Route(endpoint=THERE, way="relayed"), []),
        (PUNCHED, EndpointLearned(THERE, True, False), replace(PUNCHED, endpoint=THERE, detour=None), []),
        # the other side's attempts
        (RELAYED, BothSidesTried(True, NOW), replace(PUNCHED, detour=LATER, way=None), []),
        (RELAYED, BothSidesTried(False, NOW), replace(RELAYED, detour=LATER), []),
        (PUNCHED, BothSidesTried(False, NOW), replace(PUNCHED, is_punched=False), []),
        (DIRECT, BothSidesTried(True, NOW), DIRECT, []),
        # what looking again has found
        (PUNCHED, LookedAgain(Move.DIAL), Route(endpoint=HERE, way="punched"), []),
        (DETOUR, LookedAgain(Move.PUNCH), replace(DETOUR, is_punched=True), []),
        (DETOUR, LookedAgain(None), DETOUR, [Move.PUNCH]),
        (PUNCHED, LookedAgain(None), PUNCHED, []),
        (replace(DIRECT, detour=NOW), LookedAgain(None), replace(DIRECT, detour=NOW), []),
    ],
)
def test_an_event_leads_to_one_route_and_says_what_is_to_be_done(
    route: Route, event: Event, after: Route, moves: list[Move]
) -> None:
    assert on(route, event) == (after, tuple(moves))


def test_only_an_endpoint_that_is_known_is_dialled_and_past_a_relay_only_anyway() -> None:
    assert not NEW.may_dial(anyway=True)
    assert DIRECT.may_dial(anyway=False)
    assert not RELAYED.may_dial(anyway=False)
    assert RELAYED.may_dial(anyway=True)


def reachable() -> set[Route]:
    """Every route that events at three moments can lead to."""
    events: list[Event] = [LookedAgain(found) for found in (None, Move.DIAL, Move.PUNCH)]
    events += [MoveFailed(move) for move in (Move.DIAL, Move.PUNCH, Move.LIBP2P)]
    events += [
        EndpointLearned(at, relayed, asked)
        for at in (HERE, THERE)
        for relayed in (False, True)
        for asked in (False, True)
    ]
    for now in (0.0, 1.0, TIMEOUTS.detour + 1.0):
        events += [StreamWanted(now), BothSidesTried(True, now), BothSidesTried(False, now)]
        events += [StreamOpened(Move.DIAL, "direct", now), StreamOpened(Move.PUNCH, "punched", now)]
        events += [StreamOpened(Move.LIBP2P, "direct", now), StreamOpened(Move.LIBP2P, "relayed", now)]
    found, due = {NEW}, [NEW]
    while due:
        route = due.pop()
        for after, _ in (on(route, event) for event in events):
            if after not in found:
                found.add(after)
                due.append(after)
    return found


def test_in_every_state_a_stream_is_tried_each_way_once_at_most_and_over_libp2p_in_the_end() -> None:
    routes = reachable()
    assert len(routes) > 100
    for route in routes:
        tried: list[Move] = []
        after, moves = on(route, StreamWanted(1.0))
        while attempts := [move for move in moves if move is not Move.LOOK_AGAIN]:
            (move,) = attempts
            tried.append(move)
            after, moves = on(after, MoveFailed(move))
            assert Move.LOOK_AGAIN not in moves
        assert tried in (
            [Move.DIAL, Move.LIBP2P],
            [Move.DIAL, Move.PUNCH, Move.LIBP2P],
            [Move.PUNCH, Move.LIBP2P],
            [Move.LIBP2P],
        )
        assert (tried[0] is Move.DIAL) == (route.detour is None)
        assert not after.is_punched or Move.PUNCH not in tried


def test_in_every_state_whoever_is_not_dialled_is_looked_for_again_when_the_detour_is_over() -> None:
    for route in reachable():
        if route.detour is not None:
            after, moves = on(route, StreamWanted(route.detour))
            assert Move.LOOK_AGAIN in moves
            assert after.detour == route.detour + TIMEOUTS.detour
            assert on(after, LookedAgain(Move.DIAL))[0].detour is None
