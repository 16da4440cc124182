"""Parts of the all-reduces that are sized to links: who sums how much of a stage's gradients, by a linear program.

A reduction of `G` bytes by n holders, of which j sums the part `x_j` of them, is over at `T` when all have all sums. A
holder that is ready at `e` sends each owner its own of that one's part; an owner that has them all, at `S_j`, sends the
sum to all others:

- `S_j >= e_i + alpha_ij + x_j G / beta_ij` over each link, and `S_j >= min e + min alpha + (n - 1) x_j G / down_j`
- over a sender's uplink, which its parts share, all are there together, `S_j >= e_i + alpha_ij + (1 - x_i) G / up_i`,
  or smaller ones before, each as if all were of its size, `S_j >= e_i + alpha_ij + (n - 1) x_j G / up_i`: neither is
  more than an estimate, so both programs are solved
- `T >= S_j + alpha_ji + x_j G / beta_ji` over each link, `+ (n - 1) x_j G / up_j` over the owner's uplink
- `T >= e_j + alpha_ji + (x_i + x_j) G / beta_ji`, for a link carries both, and so do uplink and downlink: `T >= e_j +
  max alpha + (1 + (n - 2) x_j) G / up_j`, `T >= min e + min alpha + (1 + (n - 2) x_i) G / down_i`

with all `x_j >= 0` adding up to 1 and the least T. An owner far from others costs its delays however small its part is,
so it is also solved without those that are farthest from others, one more each time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.model_demand import has_memory_to_sum, reduced_bytes
from dtfm_coordinator.allocator.simulator.fast_all_reduce import OWN, TIED
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.simulator.simulated_timeline import Simulation
from dtfm_coordinator.allocator.workload import Workload, predict
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import Reduction, reductions
from dtfm_protocol.plan.summed_parts import WHOLE, Parts, SummedParts
from dtfm_protocol.view.view import View

Floats = npt.NDArray[np.float64]

MOST_TIMES = 4.0
"""Equal parts, at most, that one holder sums: it holds all others' of its part at a time, decoded."""
LEAST_TIMES = 1 / 32
"""Equal parts, at least, that one sums who sums any: smaller ones are not worth their messages."""
TRIES = 9
"""Programs, at most, for one reduction: each leaves out more owners."""
ALIKE = 1e-3
"""Of a step: so much shorter it must be for a plan to have sized parts."""
MOST_HOLDERS = 64
"""Holders of a reduction that is sized; beyond, all sum equally much."""


def sizings(view: View, work: Workload, plan: Plan, ends: Mapping[str, float]) -> Iterator[Plan]:
    """Yield the plan with parts of its reductions that are sized to the links of `view`, by each of the programs that
    were solved.

    Args:
        ends: seconds at which each peer has ended its last action; 0 where it is not given.
    """
    links = Links.of(view)
    found = reductions(plan, tied=work.demand.trained_tied_parameters > 0)
    shared_uplinks = bool(np.isfinite(links.uplink[[links.index[peer] for peer in plan.peers]]).any())
    for together in (True, False) if shared_uplinks else (True,):
        own: list[Parts] = [()] * len(plan.stages)
        shared: Parts = ()
        for one in found:
            gradients = reduced_bytes(plan, work.demand, one)
            holders = _Holders.of(links, one, ends)
            parts = whole_parts(least_time_parts(holders, gradients, together=together))
            if one.is_shared:
                shared = parts
            else:
                own[one.stages[0]] = parts
        if shared or any(own):
            sized = plan.model_copy(update={"parts": SummedParts(stages=tuple(own), shared=shared)})
            if has_memory_to_sum(sized, work.demand, view.nodes):
                yield sized


def by_links(view: View, work: Workload, plan: Plan, least: float = np.inf) -> tuple[Plan, PredictedSeconds]:
    """Return the plan with sized parts where its step, simulated exactly, is shorter with them than with equal parts;
    and what it takes.

    Args:
        least: as of `may_be_sized`.
    """
    plain = plan.model_copy(update={"parts": None})
    played = predict(view, work, plain)
    if not may_be_sized(played.cost, least):
        return plain, played.cost
    priced = [(other, predict(view, work, other).cost) for other in sizings(view, work, plain, last_ends(played))]
    return shortest(plain, played.cost, priced)


def may_be_sized(cost: PredictedSeconds, least: float) -> bool:
    """Whether a plan may take less than `least` seconds with other parts: they save no more than reductions take."""
    return cost.data_parallel > ALIKE * cost.total and cost.total - cost.data_parallel < least


def shortest(
    plain: Plan, cost: PredictedSeconds, sized: Iterable[tuple[Plan, PredictedSeconds]]
) -> tuple[Plan, PredictedSeconds]:
    """Return which of a plan's sizings has the shortest step, with it; the plan itself where none is worth it."""
    best = min(sized, key=lambda one: one[1].total, default=(plain, cost))
    return best if best[1].total < (1 - ALIKE) * cost.total else (plain, cost)


def last_ends(played: Simulation) -> dict[str, float]:
    """Return the seconds at which each peer of a simulated step has ended its last action."""
    ends: dict[str, float] = {}
    for span in played.compute:
        if span.kind != "optimizer":
            ends[span.peer] = max(ends.get(span.peer, 0.0), span.end)
    return ends


def slot_parts(plan: Plan, names: Sequence[str]) -> Floats:
    """Return the parts of a plan's reductions, by slot, as the fast form of the simulated step takes them: shape
    (2, slots).

    Args:
        names: the peer in each slot.
    """
    slot = {name: number for number, name in enumerate(names)}
    parts = np.zeros((2, len(names)), dtype=np.float64)
    for one in reductions(plan, tied=True):
        for holder, share in zip(one.holders, one.amounts(1.0), strict=True):
            parts[TIED if one.is_shared else OWN, slot[holder]] = share
    return parts


@dataclass(frozen=True, slots=True)
class _Holders:
    """Holders of a reduction: links between them, and when each is ready, seconds and bytes a second."""

    alpha: Floats
    beta: Floats
    uplink: Floats
    downlink: Floats
    ready: Floats

    @classmethod
    def of(cls, links: Links, one: Reduction, ends: Mapping[str, float]) -> Self:
        alpha, beta = links.pairs(one.holders, one.holders)
        rows = [links.index[peer] for peer in one.holders]
        ready = np.array([ends.get(peer, 0.0) for peer in one.holders])
        return cls(alpha, beta, links.uplink[rows], links.downlink[rows], ready)

    def are_alike(self, apart: npt.NDArray[np.bool_]) -> bool:
        """Whether no holder differs from another one; `apart` has the pairs of different ones."""
        told = (self.alpha[apart], self.beta[apart], self.uplink, self.downlink, self.ready)
        return all(bool((values == values[0]).all()) for values in told)


def least_time_parts(holders: _Holders, gradients: float, *, together: bool) -> Floats | None:
    """Return the part that each holder sums, shape (n,), adding up to 1, with which the reduction is over the soonest;
    None: no program was solved, or there is nothing to choose, as where holders are all alike."""
    count = len(holders.ready)
    apart = ~np.eye(count, dtype=bool)
    if not 1 < count <= MOST_HOLDERS or gradients <= 0 or not (holders.beta[apart] > 0).all():
        return None
    if holders.are_alike(apart):
        return None
    far = np.where(apart, holders.alpha, 0.0)
    farthest_first = np.argsort(-(far.max(axis=0) + far.max(axis=1)), kind="stable")
    most_left_out = count - int(np.ceil(count / MOST_TIMES))
    best: tuple[float, Floats] | None = None
    for left_out in np.unique(np.linspace(0, most_left_out, TRIES).round().astype(int)).tolist():
        owners = np.ones(count, dtype=bool)
        owners[farthest_first[:left_out]] = False
        found = _solved(holders, gradients, owners, together)
        if found is not None and (best is None or found[0] < (1 - ALIKE) * best[0]):
            best = found
    return None if best is None else best[1]


def _solved(
    holders: _Holders, gradients: float, owners: npt.NDArray[np.bool_], together: bool
) -> tuple[float, Floats] | None:
    """Return the least T, and the parts of it, where none but `owners` sum; None: not solved."""
    count = len(holders.ready)
    ready, alpha, first = holders.ready, holders.alpha, float(holders.ready.min())
    apart = ~np.eye(count, dtype=bool)
    near = float(alpha[apart].min())
    x, s, t = range(count), range(count, 2 * count), 2 * count
    rows = list[tuple[dict[int, float], float]]()  # each: coefficients, and the constant, whose sum is at most 0
    for j in np.flatnonzero(owners).tolist():
        up, down = gradients / holders.uplink[j], gradients / holders.downlink[j]
        away = float(np.delete(alpha[j], j).max())
        rows.append(({s[j]: -1.0}, float(ready[j])))
        rows.append(({s[j]: -1.0, x[j]: (count - 1) * down}, first + near))
        rows.append(({t: -1.0, s[j]: 1.0, x[j]: (count - 1) * up}, away))
        rows.append(({t: -1.0, x[j]: (count - 2) * up}, ready[j] + away + up))
        for i in range(count):
            if i == j:
                continue
            there, back = gradients / holders.beta[i, j], gradients / holders.beta[j, i]
            rows.append(({s[j]: -1.0, x[j]: there}, ready[i] + alpha[i, j]))
            sends = gradients / holders.uplink[i]
            if sends > 0 and together:
                rows.append(({s[j]: -1.0, x[i]: -sends}, ready[i] + alpha[i, j] + sends))
            elif sends > 0:
                rows.append(({s[j]: -1.0, x[j]: (count - 1) * sends}, ready[i] + alpha[i, j]))
            rows.append(({t: -1.0, s[j]: 1.0, x[j]: back}, alpha[j, i]))
            rows.append(({t: -1.0, x[i]: back, x[j]: back}, ready[j] + alpha[j, i]))
    for i in range(count):
        down = gradients / holders.downlink[i]
        rows.append(({t: -1.0, x[i]: (count - 2) * down}, first + near + down))
    entries = [(row, column, value) for row, (some, _) in enumerate(rows) for column, value in some.items()]
    at, columns, values = (np.array(part) for part in zip(*entries, strict=True))
    most = min(1.0, MOST_TIMES / count)
    solved = linprog(
        c=np.eye(2 * count + 1)[t],
        A_ub=coo_array((values, (at, columns)), shape=(len(rows), 2 * count + 1)).tocsr(),
        b_ub=-np.array([constant for _, constant in rows]),
        A_eq=coo_array((np.ones(count), (np.zeros(count, dtype=int), np.arange(count))), shape=(1, t + 1)).tocsr(),
        b_eq=[1.0],
        bounds=[*((0.0, most if owner else 0.0) for owner in owners.tolist()), *[(0.0, None)] * (count + 1)],
        method="highs",
    )
    return (float(solved.x[t]), np.maximum(solved.x[:count], 0.0)) if solved.success else None


def whole_parts(shares: Floats | None) -> Parts:
    """Return shares that add up to 1 in 65536ths that do exactly, the least ones as nothing; () for None."""
    if shares is None:
        return ()
    kept = np.where(shares * len(shares) < LEAST_TIMES, 0.0, shares)
    exact = kept / kept.sum() * WHOLE
    parts = np.floor(exact).astype(np.int64)
    most_left = np.argsort(parts - exact, kind="stable")[: WHOLE - int(parts.sum())]
    parts[most_left] += 1
    return tuple(parts.tolist())
