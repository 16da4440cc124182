"""The evolutionary search over whole layouts: depth, peers of each stage, who stands where, shares, layers, idle peers.

A population keeps the best layout of each row of peer counts. A new one comes from one parent, annealed from where it
is; from two, stage by stage; or from splitting, merging, adding or leaving out stages. Each is annealed (`annealing`),
which may add stages and leave some out, too, where all is open, and kept if it is the best of its counts. In the end
the best is changed as long as any single change (`hill_climbing`) makes it better. Every number is the fast form's
(`fast_simulator`), plus what moving there costs (`moving_cost`). Where time alone is limited, threads anneal side by
side, out of one population.

The sooner a move must pay back, the fewer changes are the best layouts away from that of the plan in force, and most of
what a search meets is not. So where there is one, its layout is changed singly, too, before all else.

Of many peers the best plan may use a few, and a budget does not last for trying them all. There chains are grown peer
by peer before anything is annealed, descents are short, and only those changes are played that a sketch does not find
bad (`sketched_step`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.search_budget import Budget
from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.foundations.side_by_side import side_by_side
from dtfm_coordinator.allocator.problem.bucket_cut import MOST_BUCKETS
from dtfm_coordinator.allocator.problem.moving_cost import LayersInForce, moving_a_step
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.search.annealing import anneal
from dtfm_coordinator.allocator.search.foretelling import SHORT, Foretelling
from dtfm_coordinator.allocator.search.grown_chains import grown
from dtfm_coordinator.allocator.search.hill_climbing import HillClimber
from dtfm_coordinator.allocator.search.layout import Layout
from dtfm_coordinator.allocator.search.layout_population import PARENTS, LayoutPopulation
from dtfm_coordinator.allocator.search.layout_variation import crossed, lengthened, regrouped
from dtfm_coordinator.allocator.search.starts import Stages
from dtfm_coordinator.allocator.simulator.compiled_schedule import kinds_of

CHANGES = 0.2
"""Most of what is left of the budget that goes into single changes of the layout in force."""
SURVEY = 0.35
"""Most of what is left of the budget that goes into looking at every shape once."""
GROWTH = 0.15
"""Most of what is left of the budget that goes into growing a chain."""
LONG = 4
"""Times as many micro-batches make a step long."""
WARM, COOL = 0.06, 0.003
"""Temperatures of a descent, as fractions of the step's seconds."""
TRIES_A_PEER, FEWEST_A_PEER = 40, 4
"""Changes tried in one descent, for each peer, at most and at least."""
DESCENTS = 16
"""Descents for which what the first look at all shapes leaves of the budget is to last: on many peers whole ones are
too long for that, and no number of stages would be looked at twice."""
LENGTHENED = 0.5
"""Share of changes of depth that add idle peers as a stage, or take a stage away, where nearly all of many are idle."""
MANY = 16
"""Peers beyond which a budget does not last for trying them all."""
DEEPER = 2
"""Stages more that a layout may come to have until the clock is looked at again."""
ACTIONS_A_CALL = 400_000
"""About how many actions and messages of reductions are played between two looks at the clock: some hundredths of a
second, or a tenth."""


class Evolution:
    """One search."""

    def __init__(
        self,
        problem: Problem,
        standing: LayersInForce,
        budget: Budget,
        seed: int,
        *,
        any_depth: bool,
        any_counts: bool,
        in_force: Layout | None = None,
    ) -> None:
        """`any_depth` lets the number of stages change, `any_counts` the numbers of their peers; `in_force` is the
        layout of the plan in force, of any schedule."""
        self._problem, self._standing, self._budget = problem, standing, budget
        self._any_depth, self._any_counts, self._in_force = any_depth, any_counts, in_force
        self._climber = HillClimber(problem, self._objective, budget, any_counts=any_counts, any_depth=any_depth)
        self._seed = seed
        self._population = LayoutPopulation(budget.elapsed)
        self._starts: list[Layout] = []
        """Layouts of the first placements that were priced."""
        self._are_many = len(problem.forward) > MANY
        self._tries = 0
        """Changes tried in one descent."""
        self._settled: Layout | None = None
        """Layout of which all single changes were looked at."""
        self.fitted = False
        """Whether any layout was within every peer's memory."""

    @property
    def history(self) -> list[tuple[float, float]]:
        """(seconds, objective) of each layout that was the best so far."""
        return self._population.history

    def finalists(self, count: int) -> list[Layout]:
        """The `count` best, as many of different depths, and the best of the first placements: what seems better than
        that may not be, where uplinks or downlinks bind."""
        best = [layout for _, layout in self._population.ranked()[:count]]
        start = min(self._starts, key=self._objective, default=None)
        return list(
            dict.fromkeys([*best, *self._population.parents()[:count], *([start] if start is not None else [])])
        )

    def look_at(self, placements: Iterable[Stages]) -> None:
        """Price placements as they are, to the last one whatever the budget, unless they are told to stop."""
        for stages in placements:
            if self._population and self._budget.stop():
                break
            self._admit(Layout.of(self._problem, stages))

    def run(self, shapes: Sequence[Shape], seeds: Sequence[Layout]) -> None:
        """Look at `seeds` and at every shape once, then evolve until the budget is spent.

        Layers of seeds that do not fit, because they are another schedule's, are shared out anew.
        """
        for layout in seeds:
            self._admit(_fitting(layout, self._problem))
        self._change_in_force()
        self._survey(shapes)
        peers = len(self._problem.forward)
        fewest, self._tries = FEWEST_A_PEER * peers, TRIES_A_PEER * peers
        if self._are_many:
            self._tries = max(fewest, min(self._tries, self._budget.foreseen() // DESCENTS))
        if self._population:
            side_by_side(self._evolve, self._budget.cores)

    def _evolve(self, number: int) -> None:
        """Evolve until the budget is spent, beside other threads; `number` 0 looks at single changes in the end."""
        rng = np.random.default_rng([self._seed, number] if number else self._seed)
        while not self._budget.spent():
            best = self._population.ranked()[0][1]
            if number == 0 and best != self._settled and self._climber.is_due(best):
                self._population.keep_all(self._climber.by_first(*self._population.ranked()[0]))
                self._settled = self._population.ranked()[0][1]
                continue
            fresh = self._population.fresh()
            if fresh is not None:
                self._descend(fresh, WARM, rng)
            else:
                self._descend(self._child(rng), WARM * float(rng.choice((0.2, 1.0, 2.0))), rng)

    def _change_in_force(self) -> None:
        """Change the layout in force, if there is one, as long as any single change makes it better."""
        begun = None if self._in_force is None else _fitting(self._in_force, self._problem)
        if begun is not None:
            until = self._budget.used() + CHANGES * (1 - self._budget.used())
            self._population.keep_all(self._climber.by_best(self._objective(begun), begun, until))

    def _survey(self, shapes: Sequence[Shape]) -> None:
        """Look at the shapes' first placements: foretell all, then price the best of the best depths."""
        foretelling = Foretelling(self._problem, self._budget)
        before = self._budget.used()
        enough = before + SURVEY * (1 - before)
        foretold = foretelling.best_of(shapes, enough, uneven=self._any_counts, has_some=bool(self._population))
        chosen, chains = sorted(foretold, key=lambda one: one[0])[:PARENTS], list[Stages]()
        if self._are_many and self._any_depth and self._any_counts:
            enough = self._budget.used() + GROWTH * (1 - self._budget.used())
            known = [one for one in chosen if max(map(len, one[1])) == 1]
            chains = grown(self._problem, foretelling.soonest, known, lambda: self._budget.used() < enough)
        self.fitted |= foretelling.fitted
        for stages in [*(stages for _, stages in chosen), *chains]:
            layout = Layout.of(self._problem, stages)
            self._admit(layout)
            self._starts += [layout] if layout is not None else []

    def _admit(self, layout: Layout | None) -> None:
        """Price a layout and keep it if it is the best of its counts."""
        if layout is None:
            return
        self.fitted = True
        self._budget.spend(1)
        self._population.keep(self._objective(layout), layout)

    def _objective(self, layout: Layout) -> float:
        peers, counts, _, layers = layout.arrays()
        moving = moving_a_step(self._problem, self._standing, peers, counts, layers)
        return layout.cost(self._problem).total + moving

    def _descend(self, layout: Layout, warm: float, rng: np.random.Generator) -> None:
        """Anneal from a layout: a long step on a short one first, as placements and layers are alike for both."""
        if self._problem.micro_batches > LONG * SHORT and rng.random() < 0.8:
            short = self._problem._replace(micro_batches=max(SHORT, 2 * max(layout.counts)))
            begun = Layout.of(short, _stages(layout))
            found = self._annealed(short, begun, warm, lambda *met: None, rng) if begun is not None else None
            if found is not None:
                again = Layout.of(self._problem, _stages(found))
                self._admit(again)
                if again is not None and again.layers != found.layers:
                    kept = replace(again, layers=found.layers)
                    self._admit(kept if kept.fits(self._problem) else None)
            return
        self._annealed(self._problem, layout, warm, self._population.keep, rng)

    def _annealed(
        self,
        problem: Problem,
        layout: Layout,
        warm: float,
        met: Callable[[float, Layout], None],
        rng: np.random.Generator,
    ) -> Layout:
        """The last of the best layouts that an annealing `met`, in parts short enough to look at the clock between."""
        _, counts, shares, layers = layout.arrays()
        ahead = layout.more
        standing = set(layout.peers)
        order = np.array([*layout.peers, *(p for p in range(len(problem.forward)) if p not in standing)])
        # Of few peers each depth is looked at soon: half of the descents keep to theirs, the others try larger steps.
        largest = int(self._any_depth) if self._are_many else len(order) * int(self._any_depth and rng.random() < 0.5)
        parts = max(1, min(8, self._tries // self._tries_a_call(problem, counts)))
        cooling = (COOL / WARM) ** (1 / parts)
        for part in range(parts):
            if self._budget.spent():
                break
            hot = warm * cooling**part
            tries = self._budget.left(self._tries_a_call(problem, counts))
            objective, order, counts, shares, layers, ahead = anneal(
                problem, self._standing, order, counts, shares, layers, ahead, self._any_counts, largest, hot,
                hot * cooling, tries, self._are_many, rng,
            )  # fmt: skip
            self._budget.spend(tries)
            layout = Layout.from_arrays(order[: len(shares)], counts, shares, layers, ahead)
            met(objective, layout)
        return layout

    def _tries_a_call(self, problem: Problem, counts: npt.NDArray[np.int64]) -> int:
        """Return how many changes are tried between two looks at the clock, of a layout with stages of so many peers,
        or a little deeper."""
        buckets = min(MOST_BUCKETS, 1 + int(problem.gradient_before[-1] / len(counts) / problem.bucket_bytes))
        actions = kinds_of(problem.schedule) * problem.micro_batches * (len(counts) + DEEPER * self._any_depth)
        return max(1, min(ACTIONS_A_CALL // (actions + 2 * buckets * int((counts**2).sum())), self._tries))

    def _child(self, rng: np.random.Generator) -> Layout:
        """A new layout out of those kept."""
        parents = self._population.parents()
        parent = parents[int(rng.integers(len(parents), size=2).min())]
        dice = rng.random()
        stages = _stages(parent)
        if self._any_depth and dice < 0.4:
            idle = sorted(set(range(len(self._problem.forward))) - set(parent.peers))
            often = LENGTHENED * len(idle) / len(self._problem.forward) if self._are_many else 0.0
            if not self._any_counts or (often and rng.random() < often):
                stages = lengthened(stages, idle, self._problem.layers, rng)
            else:
                stages = regrouped(stages, self._problem.layers, self._problem.micro_batches, rng)
        elif dice < 0.6:
            alike = [
                one for _, one in self._population.ranked() if len(one.counts) == len(parent.counts) and one != parent
            ]
            mates = alike[:PARENTS]
            if mates:
                stages = crossed(stages, _stages(mates[int(rng.integers(len(mates)))]), rng)
        else:
            return parent
        return Layout.of(self._problem, stages) or parent


def _fitting(layout: Layout, problem: Problem) -> Layout | None:
    """A layout as it is, or with its layers shared out anew where it does not fit; None: it cannot."""
    return layout if layout.fits(problem) else Layout.of(problem, _stages(layout))


def _stages(layout: Layout) -> Stages:
    """The peers of each stage."""
    ends = np.cumsum(layout.counts)[:-1]
    return [part.tolist() for part in np.split(np.array(layout.peers), ends)]
