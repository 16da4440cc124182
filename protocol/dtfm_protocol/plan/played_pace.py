"""The pace of a plan's step: the durations and delays by which its orders of compute are made.

Whole microseconds, so that every peer makes the same orders of them on any machine. They are what the plan's author has
measured or reckoned; where the step takes otherwise, the orders are still valid, and only wait longer. Under a plan
that `follows_durations` commits bring new ones.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dtfm_protocol.bounds import MOST_MICRO_BATCHES, MOST_PEERS
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import ScheduleName
from dtfm_protocol.plan.ballot import ActionDurations, NewDurations
from dtfm_protocol.plan.schedule_rules import MOST_MICROSECONDS
from dtfm_protocol.schema import Schema

MOST_PAIRS = 1 << 17
"""Pairs of peers between which micro-batches of one plan go."""

Durations = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_MICROSECONDS)], ...], Field(max_length=MOST_PEERS)]
"""Microseconds of one micro-batch's action on each peer of the plan, in the order of `Plan.peers`."""
InFlight = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)], ...], Field(max_length=MOST_PEERS)]
"""Numbers of micro-batches for each peer of the plan, in the order of `Plan.peers`."""
Delays = Annotated[tuple[Annotated[int, Field(ge=0, le=MOST_MICROSECONDS)], ...], Field(max_length=MOST_PAIRS)]
"""Microseconds for each pair of peers of neighbouring stages, in the order of `Plan.pairs`."""


class Pacing(Schema):
    """The pace of one step under a plan: what its actions and messages take, and how far each peer may be ahead."""

    forward: Durations
    """Microseconds of a forward."""
    backward: Durations
    """Microseconds of a backward, recomputation included, without `weight`."""
    weight: Durations = ()
    """Microseconds of the weights' gradients; empty where the schedule does not make them an action of their own."""
    in_flight: InFlight
    """Micro-batches that each peer may have between their forward and their backward."""
    kept: InFlight
    """Micro-batches whose activations each peer may keep: `in_flight`, or more where `weight` is an action of its
    own."""
    ahead: Delays = ()
    """Microseconds for which a message ahead takes the link of each pair: the next one begins after it."""
    ahead_delay: Delays = ()
    """Microseconds from a message's end there to its arrival."""
    back: Delays = ()
    """Microseconds for which the message that brings a gradient back takes the link of each pair."""
    back_delay: Delays = ()
    """Microseconds from its end there to its arrival."""

    @model_validator(mode="after")
    def _columns_are_alike(self) -> Self:
        peers, pairs = len(self.forward), len(self.ahead)
        for name in ("backward", "in_flight", "kept"):
            if len(getattr(self, name)) != peers:
                raise ValueError(f"{name}: {len(getattr(self, name))} numbers for {peers} peers")
        if len(self.weight) not in (0, peers):
            raise ValueError(f"weight: {len(self.weight)} numbers for {peers} peers")
        for name in ("ahead_delay", "back", "back_delay"):
            if len(getattr(self, name)) != pairs:
                raise ValueError(f"{name}: {len(getattr(self, name))} numbers for {pairs} pairs of peers")
        for flying, kept in zip(self.in_flight, self.kept, strict=True):
            if kept < flying:
                raise ValueError(f"kept: {kept} micro-batches where {flying} are in flight")
        return self

    @property
    def kinds(self) -> int:
        """Number of the columns of compute: of the durations that each peer has."""
        return 3 if self.weight else 2

    def durations_of(self, place: int) -> ActionDurations:
        """Return what the actions of the peer at `place` in `Plan.peers` take."""
        return tuple(column[place] for column in (self.forward, self.backward, self.weight) if column)

    def after(self, durations: NewDurations) -> Self:
        """Return the pace in which the actions of some peers take other durations.

        Raises:
            Refused: there are no such peers, or they have other numbers of durations.
        """
        rows = [self.durations_of(place) for place in range(len(self.forward))]
        for place, row in durations:
            if place >= len(rows) or len(row) != self.kinds:
                raise Refused(f"{len(row)} durations of peer {place}, of {len(rows)} peers with {self.kinds} each")
            rows[place] = tuple(row)
        columns = zip(("forward", "backward", "weight"), zip(*rows, strict=True), strict=False)
        return self.model_copy(update=dict(columns))

    def check(self, schedule: ScheduleName, peers: int, pairs: int) -> None:
        """Check that this is the pace of a plan of so many peers and pairs of them.

        Raises:
            ValueError: it is not.
        """
        if schedule == "gpipe":
            raise ValueError("pacing: gpipe keeps all micro-batches in flight, whatever they take")
        if len(self.forward) != peers:
            raise ValueError(f"pacing: of {len(self.forward)} peers, for {peers}")
        if len(self.ahead) != pairs:
            raise ValueError(f"pacing: of {len(self.ahead)} pairs of peers, for {pairs}")
        if bool(self.weight) != (schedule == "zero-bubble"):
            raise ValueError("pacing: weight belongs to zero-bubble, and to nothing else")
