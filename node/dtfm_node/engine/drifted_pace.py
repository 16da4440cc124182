"""Rule by which an arbiter finds that durations have drifted from those of which orders were made, and that new orders
are worth it. Pure.

A busy machine's figures go up and down. So they are smoothed, looked at now and then, and followed only where the step
that is played with them gets shorter by the new orders: these are found greedily, and may be worse.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from statistics import median_low

from dtfm_node.engine.orders_in_force import OrdersInForce
from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.ballot import MOST_NEW_DURATIONS, ActionDurations, NewDurations, Vote
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.played_orders import step_microseconds

DRIFT = 1.2
"""Factor by which an action of some peer must take longer, or less, than what is in force, before new orders are looked
for."""
GAIN = 0.02
"""Part of the played step that new orders must save."""
SMOOTHED_STEPS = 5
"""Newest steps of a peer of which each of its durations is the median."""
STEPS_APART = 10
"""Steps from one look for new orders to the next: it plays a step three times, while all wait for the commit."""


class DriftedPace:
    """Look-out of a plan's arbiter for durations that have drifted."""

    def __init__(self, plan: Plan) -> None:
        self._in_force = OrdersInForce.of(plan)
        self._steps: defaultdict[str, deque[ActionDurations]] = defaultdict(lambda: deque(maxlen=SMOOTHED_STEPS))
        self._wait = 0
        """Number of steps before the next look."""

    def on(self, votes: Mapping[str, Vote]) -> NewDurations:
        """Take the votes on a step, by peer; return the new durations that its commit is to bring: none where all goes
        on as it is."""
        for peer, vote in votes.items():
            if vote.durations:
                self._steps[peer].append(vote.durations)
        self._wait -= 1
        if self._wait > 0 or not (new := self._drifted()):
            return ()
        self._wait = STEPS_APART
        try:
            after = self._in_force.after(new)
        except Refused:
            return ()  # they would take more memory
        before = step_microseconds(after.paced, self._in_force.orders)
        if step_microseconds(after.paced, after.orders) > (1.0 - GAIN) * before:
            return ()
        self._in_force = after
        return new

    def _drifted(self) -> NewDurations:
        """Return what actions take now, of those peers that have drifted most, where one has drifted by enough."""
        pacing = self._in_force.paced.pacing
        assert pacing is not None, "only a plan with a pace follows durations"
        found: list[tuple[float, int, ActionDurations]] = []
        for place, peer in enumerate(self._in_force.plan.peers):
            if len(steps := self._steps[peer]) == SMOOTHED_STEPS:
                now, before = tuple(map(median_low, zip(*steps, strict=True))), pacing.durations_of(place)
                drift = max(max(one / other, other / one) for one, other in zip(now, before, strict=True))
                found.append((drift, place, now))
        found.sort(key=lambda one: -one[0])
        if not found or found[0][0] <= DRIFT:
            return ()
        return tuple((place, now) for drift, place, now in found[:MOST_NEW_DURATIONS] if drift > 1.0)
