"""The route to one peer: what is known of the ways that lead there, and which one is to be tried next. No I/O.

A stream to a peer is dialled at the addresses that the peer gave. Where that fails, and libp2p reaches the peer only
over a relay, both sides try to open the connection at once ("punch"); else, and where that fails too, libp2p carries
the stream. Then the peer is not dialled for a while (a detour). When that is over, somebody who waits for nothing looks
whether there is a better way, while streams still go by the one that is known.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.tls_connections import Endpoint
from dtfm_protocol.wire.stream import Way


class Move(Enum):
    """An action that a route asks for."""

    DIAL = auto()
    """Open the stream over a connection to the peer's own addresses."""
    PUNCH = auto()
    """Open the stream over a connection that both sides open."""
    LIBP2P = auto()
    """Open the stream over libp2p."""
    LOOK_AGAIN = auto()
    """Look whether there is a better way than the one in use, beside whatever else is to be done."""


@dataclass(frozen=True)
class Route:
    """The knowledge that one peer has of the ways to another one."""

    endpoint: Endpoint | None = None
    """The endpoint at which the peer says it takes connections; None: it has not introduced itself."""
    is_relayed: bool = False
    """Whether libp2p reaches the peer only over a relay, so that its addresses have been tried in vain."""
    is_punched: bool = False
    """Whether the last attempt to open a connection from both sides has succeeded."""
    detour: float | None = None
    """The time until which the peer is not dialled, in the event loop's seconds; None: nothing speaks against
    dialling."""
    way: Way | None = None
    """The way of the newest stream that was opened; None: there was none."""

    def may_dial(self, *, anyway: bool) -> bool:
        """Whether the endpoint that is known is to be dialled; `anyway`: also where only a relay reaches the peer."""
        return self.endpoint is not None and (anyway or not self.is_relayed)


@dataclass(frozen=True)
class StreamWanted:
    """An event: a stream to the peer is asked for."""

    now: float


@dataclass(frozen=True)
class MoveFailed:
    """An event: a stream did not come about by a move that was made for it."""

    move: Move


@dataclass(frozen=True)
class StreamOpened:
    """An event: a stream came about by a move."""

    move: Move
    way: Way
    now: float


@dataclass(frozen=True)
class EndpointLearned:
    """An event: the peer has said where it takes connections, on a stream on which libp2p has proven who it is."""

    endpoint: Endpoint
    is_relayed: bool
    """Whether that stream came over a relay."""
    is_asked: bool
    """Whether this side had asked; else the peer came by itself, and an endpoint that is new ends a detour."""


@dataclass(frozen=True)
class BothSidesTried:
    """An event: the peer wanted to open a connection from both sides, and that is over."""

    is_open: bool
    """Whether the connection came about."""
    now: float


@dataclass(frozen=True)
class LookedAgain:
    """An event: the look for a better way is over."""

    found: Move | None
    """The move that works now, `DIAL` or `PUNCH`; None: dialling does not."""


Event = StreamWanted | MoveFailed | StreamOpened | EndpointLearned | BothSidesTried | LookedAgain
"""An event that changes what is known of a route."""


def on(route: Route, event: Event) -> tuple[Route, tuple[Move, ...]]:
    """Return the route after an event, and what is to be done: if a stream is wanted, one way to try, while there is
    one.

    Times are the event loop's, in seconds.
    """
    match event:
        case StreamWanted(now) if route.detour is None:
            return route, (Move.DIAL,)
        case StreamWanted(now):
            known = Move.PUNCH if route.is_punched else Move.LIBP2P
            if route.detour is not None and route.detour <= now:
                return replace(route, detour=now + TIMEOUTS.detour), (Move.LOOK_AGAIN, known)
            return route, (known,)
        case MoveFailed(Move.DIAL):
            return route, (Move.PUNCH if route.is_punched or route.is_relayed else Move.LIBP2P,)
        case MoveFailed(Move.PUNCH):
            return replace(route, is_punched=False), (Move.LIBP2P,)
        case MoveFailed():
            return route, ()
        case StreamOpened(Move.DIAL, way):
            return replace(route, way=way), ()
        case StreamOpened(move, way, now):
            after = replace(route, way=way, is_punched=route.is_punched or move is Move.PUNCH)
            if route.detour is not None:
                return after, ()
            return replace(after, detour=now + TIMEOUTS.detour), (Move.LOOK_AGAIN,) if route.is_relayed else ()
        case EndpointLearned(endpoint, is_relayed, True):
            return replace(route, endpoint=endpoint, is_relayed=is_relayed), ()
        case EndpointLearned(endpoint, is_relayed):
            if endpoint == route.endpoint:
                return route, ()
            return replace(route, endpoint=endpoint, is_relayed=is_relayed, detour=None), ()
        case BothSidesTried(is_open, now):
            if not route.is_relayed:
                return route, ()
            detour = now + TIMEOUTS.detour if route.detour is None else route.detour
            return replace(route, is_punched=is_open, detour=detour), ()
        case LookedAgain(Move.DIAL):
            return replace(route, detour=None, is_relayed=False, is_punched=False), ()
        case LookedAgain(Move.PUNCH):
            return replace(route, is_punched=True), ()
        case LookedAgain():
            return route, (Move.PUNCH,) if route.is_relayed and not route.is_punched else ()
