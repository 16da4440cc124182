"""What a shape, K stages on n peers of a swarm, takes of a step at least: what `step_bound` is made of.

In T seconds, without the commit at the end, which is the way of its news from the arbiter to the farthest of n peers,
or else the update of the largest stage. All of this holds in every plan that takes T:

- A micro-batch goes ahead through all layers and back, on K distinct peers with memory for what they hold, over K - 1
  hops; and where embeddings are tied, a peer of the first stage that has done its last action reduces their gradients.
- A peer of stage k begins after k hops and the forwards of the layers before. After its last backward come k hops back
  and the backwards of those layers. Where weights' gradients come apart these may run beside its own.
- All forwards of a peer but the last micro-batch's end before that begins, which then goes on to the end and back; the
  first of them begins after a way from the start. So T is one whole way, and the forwards of all but one. In the same
  way it is a whole way, and the backwards of all but the first.
- Likewise for c messages that a link carries one after the other: a whole way, and the time of all but one of them.
  With n - K peers more than stages at most 2 (n - K) / s of the K - 1 boundaries have s or more of those beside them;
  the others have at most (s + 1)^2 / 4 links, of which one carries as large a part of the micro-batches. One link of
  each boundary, of other senders and receivers: their slowest is one of those of `least_ways`.
- One peer that serves a stage alone sends and receives all messages of it over as many links as it can have neighbours.
- Stages need peers, whose prices by the times that they so have `stage_prices` says. What all stages need at least is a
  shortest path over the layers, stage after stage. It must not come to more than n peers; nor to more than their
  speeds, also where their lines let them use no more of them, nor than some of both; nor than the layers for which they
  have memory. Only one stage has the fastest peer: that is kept track of.

Where two micro-batches have parts of a way, it is one path of K distinct peers ahead, and one back; they are the same
where n = K.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_lab.bounds.least_ways import least_ways
from dtfm_lab.bounds.stage_prices import (
    TURN,
    WAY,
    WHOLE,
    StagePrices,
    all_reduce_seconds,
    ends_of,
    exchange_seconds,
    longest_action,
    most_layers,
    sending_rate,
    way_back,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SHARES_OF_ONES = (0.1, 0.2)
"""Of prices by which stages need both peers and speed. Chosen: of those tried, these made the bound largest."""
ROUNDING = 1e-9
"""Share by which rounding may make a sum of prices or a time too large."""


class Swarm:
    """Peers of a problem, and the tables that all shapes on them share."""

    def __init__(self, problem: Problem, horizon: float, columns: int, *, equal_parts: bool) -> None:
        """Set up, with `columns` times of a stage up to `horizon` seconds, to the next of which others are rounded.

        Args:
            equal_parts: whether all holders of a gradient sum equal parts of it.
        """
        self.equal_parts = equal_parts
        self.problem, self.ways = problem, least_ways(problem)
        self.back = way_back(problem)
        self._step, self._columns = horizon / columns, columns
        self._times = np.append(np.linspace(0.0, horizon, columns + 1), np.inf)
        speeds = 1 / (problem.forward + problem.backward)
        self.room = np.clip(most_layers(problem, ends_of(problem, first=False, last=False)), 0.0, problem.layers)
        sent = sending_rate(problem) * horizon / min(problem.ahead_bytes, problem.back_bytes)
        served = problem.layers * np.minimum(sent, problem.micro_batches)
        prices = [np.ones(len(speeds)), speeds, np.minimum(horizon * speeds, served), self.room]
        prices += [share / len(speeds) + (1 - share) * speeds / speeds.sum() for share in SHARES_OF_ONES]
        self.prices = np.maximum([price / max(float(price.max()), ROUNDING) for price in prices], ROUNDING)
        self._kinds: dict[tuple[bool, bool], StagePrices] = {}
        trained = np.round(problem.trained_before).astype(np.int64)
        self.first, self.end = np.triu_indices(problem.layers + 1, 1)
        """First layer of each stage that there can be, and the one after its last."""
        self.trained_before, self.trained = trained[self.first], trained[self.end] - trained[self.first]

    def kind(self, *, first: bool, last: bool) -> StagePrices:
        """Return the tables of stages with these ends."""
        if (first, last) not in self._kinds:
            ends = ends_of(self.problem, first=first, last=last)
            self._kinds[first, last] = StagePrices(
                self.problem, self.ways, ends, self.prices, self._times, equal_parts=self.equal_parts
            )
        return self._kinds[first, last]

    def columns(self, seconds: Floats) -> Ints:
        """Return the column of a table for each number of seconds, which are rounded up."""
        columns = np.ceil(seconds / self._step * (1 - ROUNDING))
        return np.clip(columns, 0, self._columns + 1).astype(np.int64)

    def compute(self, stages: int) -> float:
        """Return the least seconds that all layers take of a micro-batch, there and back, on so many peers."""
        problem = self.problem
        through = self._spread(problem.forward, stages) + self._spread(self.back, stages)
        untrained = problem.layers - problem.trained_before[-1]
        head = problem.head_layers * problem.forward.min() + problem.head_weight_layers * self.back.min()
        return float(through + untrained * problem.forward.min() + head)

    def _spread(self, seconds: Floats, stages: int) -> float:
        """Return what the layers that are trained take, each peer's `seconds`, where the fastest have as many as fit,
        and every stage one at least."""
        left = float(self.problem.trained_before[-1])
        held = float(stages) if left == self.problem.layers else 0.0
        total = 0.0
        for peer in np.argsort(seconds, kind="stable"):
            if left > 0 and self.room[peer] >= 1:
                held = max(0.0, held - 1)
                taken = min(left - held, float(self.room[peer]))
                total, left = total + taken * float(seconds[peer]), left - taken
        return total if left <= 0 else np.inf


class ShapeBound:
    """Bound of the step with a number of stages on a number of peers."""

    def __init__(self, swarm: Swarm, stages: int, peers: int, all_peers: int | None = None) -> None:
        """Look at a shape on `peers` peers, or on any number up to `all_peers`."""
        self._swarm, self._stages = swarm, stages
        problem, ways, hops = swarm.problem, swarm.ways, stages - 1
        most = peers if all_peers is None else all_peers
        self._spare = spare = most - stages
        self._offered = np.sort(swarm.prices, axis=1)[:, ::-1][:, :most].sum(axis=1)
        compute = swarm.compute(stages)
        # Where all micro-batches have one route it is the same there and back.
        self._returns = np.maximum(ways.ahead + ways.back, 0.0 if spare else ways.both)
        self._way = compute + float(self._returns[hops])
        self._tied = np.zeros(len(problem.forward))
        if hops:
            tied = np.array([problem.tied_gradients])
            self._tied = all_reduce_seconds(problem, ways, tied, spare + 2)
            if swarm.equal_parts:
                self._tied = np.maximum(self._tied, exchange_seconds(problem, ways, tied, 2, spare + 2))
            # The last stage is through with the head before its last action ends.
            longest = (problem.layers + problem.head_layers) * longest_action(problem)
            self._last_tied = np.maximum(0.0, self._tied - longest)
            self._end, self._inner = (self._messages(compute, at_end=at_end) for at_end in (True, False))
        self._least_tied = float(self._tied.min())
        whole = problem.gradient_before[-1] / problem.whole_layer_gradients if problem.whole_layer_gradients else 0.0
        self.commit = max(float(ways.radius[peers - 1]), float(problem.optimizer.min() * whole) / stages)
        """Seconds of the commit, or of the update."""
        self.least = compute + float(ways.both[hops]) + self._least_tied
        """Least seconds before the commit that are not to be told from `can`."""
        for beside in range(1, spare + 2):
            links = (beside + 1) ** 2 // 4
            boundaries = hops - (2 * spare // beside if beside <= spare else 0)
            if boundaries > 0:
                others = -(-problem.micro_batches // links) - 1
                carried = others * float(ways.slowest[boundaries]) if others else 0.0
                self.least = max(self.least, self._way + carried + self._least_tied)

    def can(self, seconds: float) -> bool:
        """Whether there may be a plan of this shape that takes so long before the commit."""
        swarm, layers = self._swarm, self._swarm.problem.layers
        if seconds < self.least * (1 - ROUNDING):
            return False
        # Least prices of the stages so far, by whether the fastest peer is among theirs, and by the layers they have.
        prices = np.full((len(swarm.prices), 2, layers + 1), np.inf)
        prices[:, 0, 0] = 0.0
        for stage in range(self._stages):
            cost = np.full((len(prices), 2, layers + 1, layers + 1), np.inf)
            cost[:, :, swarm.first, swarm.end] = self._stage_prices(stage, seconds)
            without, free = prices[:, :, :, None] + cost[:, :1], prices[:, 0, :, None] + cost[:, 1]
            prices = without.min(axis=2)
            prices[:, 1] = np.minimum(prices[:, 1], free.min(axis=1))
        needed = prices[:, :, layers].min(axis=1)
        return bool((needed <= self._offered * (1 + ROUNDING)).all())

    def _stage_prices(self, stage: int, seconds: float) -> Floats:
        """Return the least prices of each stage there can be, shape (P, 2, pairs of first layer and end)."""
        swarm, problem, ways = self._swarm, self._swarm.problem, self._swarm.ways
        first, last = stage == 0, stage == self._stages - 1
        kind, trained = swarm.kind(first=first, last=last), swarm.trained
        times = np.empty((3, len(trained)))
        through = swarm.first * problem.forward.min() + swarm.trained_before * swarm.back.min()
        times[WAY] = seconds - self._returns[stage] - through
        times[WHOLE] = seconds - ways.ahead[stage] - swarm.first * problem.forward.min()
        times[TURN] = seconds - self._way
        # Replicas of an end reduce what is tied beside their own gradients, of which the table knows.
        tied, after = np.full((3, 1), self._least_tied), np.zeros((3, len(self._tied)))
        tied[WHOLE] = 0.0
        who = np.ones(len(self._tied), dtype=bool)
        if not (first and last):
            afterwards = self._tied if first else self._least_tied
            who = (self._end if first or last else self._inner) + afterwards <= seconds * (1 + ROUNDING)
            after[WAY] = after[TURN] = self._tied if first else 0.0
            after[WHOLE] = self._tied if first else self._last_tied if last else 0.0
        columns = swarm.columns(times if first else times - tied)
        prices = _largest(kind.of_one(who, after), trained, columns)
        if (tables := kind.of_replicas(self._spare + 1)) is not None:
            prices = np.minimum(prices, _largest(tables, trained, swarm.columns(times - tied)))
        return prices

    def _messages(self, compute: float, *, at_end: bool) -> Floats:
        """Return the seconds, before what is tied, of a step in which a peer alone has all messages of a stage, the
        first or last one where `at_end`; shape (N,)."""
        problem, ways, hops = self._swarm.problem, self._swarm.ways, self._stages - 1
        usable = problem.beta.copy()
        np.fill_diagonal(usable, 0.0)
        neighbours = self._spare + 1
        out = np.minimum(np.sort(usable, axis=1)[:, -neighbours:].sum(axis=1), problem.uplink)
        into = np.minimum(np.sort(usable, axis=0)[-neighbours:].sum(axis=0), problem.downlink)
        least = min(problem.ahead_bytes, problem.back_bytes)
        # The hop whose messages these are is left out of the way.
        way = compute + min(ways.ahead[hops - 1] + ways.back[hops], ways.ahead[hops] + ways.back[hops - 1])
        with np.errstate(divide="ignore"):
            one_hop = way + problem.micro_batches * np.maximum(least / out, least / into)
            line = np.minimum(problem.uplink, problem.downlink)
            both = problem.micro_batches * (problem.ahead_bytes + problem.back_bytes) / line
        seconds: Floats = one_hop if at_end else np.maximum(one_hop, both)
        return seconds


def _largest(tables: list[Floats], trained: Ints, columns: Ints) -> Floats:
    """Return the largest price of three tables for each stage that there can be."""
    prices = [table[:, :, trained, column] for table, column in zip(tables, columns, strict=True)]
    largest: Floats = np.maximum.reduce(prices)
    return largest
