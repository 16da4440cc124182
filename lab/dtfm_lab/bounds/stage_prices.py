"""The least price of the peers that a stage needs, by its layers and by the time that it has: tables for `step_bound`.

Peers have prices, any that are above 0. Stages have no peer in common, so the prices of all of them add up to no more
than those of all peers in use. A stage is served by one peer that has time for all M micro-batches, the cheapest of
these at least; or by replicas, each of which has time for some. Where prices are alike they are as few as have time for
M together; else M cost at least M times the least that any peer costs for one, and no less than the cheapest so many.

Of replicas' time their all-reduce is taken off. Buckets of it are final while a peer's last action still runs, so it
counts from when that begins. From then on all gradients leave the peer at least once: of parts that others own its own
go to them, and of its own part the totals, straight or along trees. What it sends in all its time, its messages and its
gradients, is no more than it can.

Where all sum equal parts and send them straight to each other, each has an exchange with every other one for each
bucket, of which only some are under way at a time. Of its r - 1 mates one at least is no nearer than all but r - 2 of
the others.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.problem.bucket_cut import MOST_BUCKETS
from dtfm_coordinator.allocator.problem.problem_arrays import ZERO_BUBBLE, Problem
from dtfm_lab.bounds.least_ways import LeastWays
from dtfm_protocol.plan.reductions import BUCKETS_UNDER_WAY

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

WAY, WHOLE, TURN = range(3)
"""Times that a stage has: for forwards and what other stages await of backwards; for all that it computes; and for the
longer of forwards and backwards alone, all but one."""
ROUNDING = 1e-9
"""What rounding may take off a number of micro-batches or layers."""


class Ends(NamedTuple):
    """What a stage has beside its layers, by whether it is the first and the last one."""

    compute: float
    """Layers' worth of compute that is whole: of the head."""
    gradients: float
    """Bytes of gradients, without those that first and last stage share."""
    memory: Floats
    """Bytes of each peer's memory, shape (N,)."""
    sent: float
    """Bytes that leave it for each micro-batch at least: there are no messages where it is the only one."""


def ends_of(problem: Problem, *, first: bool, last: bool) -> Ends:
    """Return what such a stage has beside its layers."""
    parameters = first * problem.embedding_parameters + last * problem.head_parameters
    held = first * problem.frozen_embedding_bytes + last * (problem.frozen_head_bytes + problem.copied_head_bytes)
    gradients = first * problem.embedding_gradients + last * problem.head_gradients
    if first or last:
        gradients -= problem.tied_gradients
    if first and last:
        parameters -= problem.tied_parameters
        held -= problem.frozen_tied_bytes
    memory = problem.parameter_bytes * parameters + held + last * problem.logits_bytes
    sent = 0.0 if first and last else min(problem.ahead_bytes, problem.back_bytes)
    return Ends(last * problem.head_weight_layers, max(0.0, gradients), memory, sent)


def most_layers(problem: Problem, ends: Ends) -> Floats:
    """Return the number of layers for which each peer has memory, with one micro-batch in flight, as if all layers were
    as large as the largest, as the search has them; shape (N,)."""
    layer = problem.parameter_bytes * problem.layer_parameters + problem.frozen_layer_bytes
    layer = layer + problem.copied_layer_bytes + min(problem.activation_bytes, problem.input_bytes)
    return np.floor((problem.memory - ends.memory) / layer + ROUNDING)


def way_back(problem: Problem) -> Floats:
    """Return the seconds of a layer's backward for which the stage before has to wait, shape (N,)."""
    return problem.backward - problem.weight if problem.schedule == ZERO_BUBBLE else problem.backward


def longest_action(problem: Problem) -> Floats:
    """Return the most seconds of a layer in a peer's last action of a step, shape (N,)."""
    return problem.weight if problem.schedule == ZERO_BUBBLE else problem.backward + problem.forward


def sending_rate(problem: Problem) -> Floats:
    """Return the bytes a second that each peer can send at most, shape (N,)."""
    usable = problem.beta.copy()
    np.fill_diagonal(usable, 0.0)
    rate: Floats = np.minimum(problem.uplink, usable.sum(axis=1))
    return rate


def all_reduce_seconds(problem: Problem, ways: LeastWays, gradients: Floats, most: int) -> Floats:
    """Return the least seconds from when a peer has begun to send gradients until they are reduced on up to `most`
    peers, two at least; `gradients` in bytes of shape (..., 1), result of shape (..., N)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.minimum(sending_rate(problem), (most - 1) * ways.rates[most - 2])
        return np.where(gradients > 0, ways.delay + gradients / rate, 0.0)


def exchange_seconds(problem: Problem, ways: LeastWays, gradients: Floats, fewest: int, most: int) -> Floats:
    """Return the same where `fewest` to `most` peers sum equal parts and send them straight to each other."""
    buckets = np.maximum(1.0, np.ceil(gradients / problem.bucket_bytes * (1 - ROUNDING)))
    played = np.minimum(buckets, MOST_BUCKETS)
    under_way = np.maximum(1.0, np.round(BUCKETS_UNDER_WAY * played / buckets))
    seconds = np.ceil(played / under_way) * ways.round_trip[fewest - 2]
    with np.errstate(invalid="ignore"):
        seconds = seconds + np.where(under_way == 1, gradients / most * ways.both_ways[fewest - 2], 0.0)
        seconds = np.maximum(seconds, ways.delay + 2 * gradients / most * ways.one_way[fewest - 2])
    return np.where(gradients > 0, seconds, 0.0)


class StagePrices:
    """Least prices of the stages with the same ends.

    A table has shape (P, 2, layers + 1, G): by the prices; by whether the fastest peer may be among the stage's; by the
    number of its layers that are trained, whose compute alone counts; and by its time, one of G. There is one for each
    kind of time, and a stage needs the largest of the three.
    """

    def __init__(
        self,
        problem: Problem,
        ways: LeastWays,
        ends: Ends,
        prices: Floats,
        times: Floats,
        *,
        equal_parts: bool,
    ) -> None:
        """Set up.

        Args:
            prices: of each peer, in P ways, shape (P, N).
            times: seconds that a stage may have, ascending, shape (G,).
            equal_parts: whether all replicas sum equal parts and send them straight to each other.
        """
        self._problem, self._ways, self._prices, self._times = problem, ways, prices, times
        layers = np.arange(round(problem.trained_before[-1]) + 1.0)
        back, whole = way_back(problem), problem.forward + problem.backward
        seconds = np.array([problem.forward + back, whole, np.maximum(problem.forward, back)])
        self._each = (layers + ends.compute)[:, None] * seconds[:, None, :]
        """Seconds of a micro-batch, by kind of time, layers and peer."""
        own = np.diff(problem.gradient_before)
        self._gradients = (layers * own[own > 0].min(initial=np.inf) if own.any() else 0 * layers) + ends.gradients
        self._fits = layers[:, None] <= most_layers(problem, ends)
        self._allowed = np.array([np.arange(len(whole)) != np.argmin(whole), np.ones(len(whole), dtype=bool)])
        self._sent, self._equal_parts = ends.sent, equal_parts
        untrained = problem.layers - problem.trained_before[-1]
        self._last = (layers + untrained + problem.head_layers)[:, None] * longest_action(problem)
        """Seconds of a peer's last action at most, by layers and peer."""
        self._lone: dict[bytes, list[Floats]] = {}
        self._replicas: list[tuple[int, list[Floats]]] = []

    def of_one(self, who: Bools, after: Floats) -> list[Floats]:
        """Return the tables of stages that one peer serves.

        Args:
            who: whether each peer may, shape (N,).
            after: seconds that each needs beside its compute, by kind of time, shape (3, N).
        """
        key = who.tobytes() + after.tobytes()
        if key not in self._lone:
            turns = [self._problem.micro_batches - (kind == TURN) for kind in (WAY, WHOLE, TURN)]
            needed = [turns[kind] * self._each[kind] + after[kind] for kind in (WAY, WHOLE, TURN)]
            self._lone[key] = [self._alone(np.where(self._fits & who, one, np.inf)) for one in needed]
        return self._lone[key]

    def of_replicas(self, most: int) -> list[Floats] | None:
        """Return the tables of stages that two to `most` replicas serve, or some more; None where there are none."""
        if most < 2 or len(self._problem.forward) < 2:
            return None
        if not self._replicas:
            self._replicas = self._reduced()
        return next((tables for count, tables in self._replicas if count >= most), self._replicas[-1][1])

    def _alone(self, needed: Floats) -> Floats:
        """Return the least price of one peer of which a stage needs so many seconds, shape (layers + 1, N)."""
        tables = np.full((len(self._prices), 2, len(needed), len(self._times)), np.inf)
        for place, allowed in enumerate(self._allowed):
            order = np.argsort(needed, axis=1)
            for layers, peers in enumerate(order):
                row = peers[allowed[peers] & (needed[layers, peers] < np.inf)]
                least = np.minimum.accumulate(self._prices[:, row], axis=1)
                least = np.concatenate([np.full((len(least), 1), np.inf), least], axis=1)
                enough = np.searchsorted(needed[layers, row] * (1 - ROUNDING), self._times, side="right")
                tables[:, place, layers] = least[:, enough]
        return tables

    def _reduced(self) -> list[tuple[int, list[Floats]]]:
        """Return the tables of replicas up to some numbers, ascending; all later ones are no dearer."""
        times, problem = self._times[:, None], self._problem
        way, turn = (self._shared(self._served(kind, times), 2) for kind in (WAY, TURN))
        carried: float | Floats = np.inf
        if self._sent:  # what leaves a peer in its time are its messages, and its gradients once
            out = sending_rate(problem)
            with np.errstate(invalid="ignore"):
                left = times * out - self._gradients[:, None, None]
            carried = np.floor(np.nan_to_num(left / self._sent, nan=0.0, posinf=np.inf) + ROUNDING)
        found: list[tuple[int, list[Floats]]] = []
        fewest = most = 2
        while not found or found[-1][0] < min(len(problem.forward), problem.micro_batches):
            fewest_held, most_held = min(fewest, len(problem.forward)), min(most, len(problem.forward))
            reduce = all_reduce_seconds(problem, self._ways, self._gradients[:, None], most_held)
            if self._equal_parts:
                exchange = exchange_seconds(problem, self._ways, self._gradients[:, None], fewest_held, most)
                reduce = np.maximum(reduce, exchange)
            reduce = np.maximum(0.0, reduce - self._last)[:, None, :]
            with np.errstate(invalid="ignore"):
                left = np.nan_to_num(times - reduce, nan=0.0, posinf=np.inf)
            whole = self._shared(np.minimum(self._served(WHOLE, left), carried), fewest_held)
            if found:
                whole = np.minimum(whole, found[-1][1][WHOLE])
            found.append((most, [way, whole, turn]))
            fewest, most = most + 1, most + 1 if most < 4 else 2 * most
        return found

    def _served(self, kind: int, seconds: Floats) -> Floats:
        """Return how many micro-batches each peer serves in seconds of shape (..., G, 1 or N); shape
        (layers + 1, G, N)."""
        each = np.maximum(self._each[kind], np.finfo(float).tiny)[:, None, :]
        with np.errstate(over="ignore"):
            served: Floats = np.floor(seconds / each + ROUNDING) + (kind == TURN)
        return served

    def _shared(self, served: Floats, fewest: int) -> Floats:
        """Return the least price of `fewest` replicas or more which serve so many micro-batches each."""
        micro_batches = float(self._problem.micro_batches)
        tables = np.full((len(self._prices), 2, *served.shape[:2]), np.inf)
        for place, allowed in enumerate(self._allowed):
            if allowed.sum() < fewest:
                continue
            can = np.where(self._fits[:, None, allowed], np.clip(served[:, :, allowed], 0.0, micro_batches), 0.0)
            enough = can.sum(axis=2) >= micro_batches
            for number, price in enumerate(self._prices[:, allowed]):
                if price.min() == price.max():
                    all_of_first = np.cumsum(-np.sort(-can, axis=2), axis=2)
                    need = price[0] * (1 + (all_of_first < micro_batches).sum(axis=2))
                else:
                    with np.errstate(divide="ignore"):
                        need = micro_batches * (price / can).min(axis=2)
                cheapest = np.sort(price)[:fewest].sum()
                tables[number, place] = np.where(enough, np.maximum(need, cheapest), np.inf)
        return tables
