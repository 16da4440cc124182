"""Revision of a plan that was made on estimates: its links are measured before they carry anything, and where they are
others than was thought it is made anew. Pure.

Whoever picks the best of many estimates picks those that are too good: so what was not measured counts at its estimate
for the first plans, and at the far end of its spread for the last, which then has little to lose.
"""

from collections.abc import Mapping

import numpy as np

from dtfm_coordinator.links.chosen_pairs import in_rounds
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_coordinator.links.probe_rounds import Pair
from dtfm_coordinator.links.view_bounds import at_worst
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

DIFFERENT = 1.25
"""Ratio of a link's rate to its estimate, either way, from which the plan is made anew. Of its delay likewise, and of
`DIFFERENT_MS` at least."""
DIFFERENT_MS = 5.0
REVISIONS = 2
"""Times that a plan is made anew because links are slower or faster than was thought."""
MOST_REVISIONS = 6
"""Times that it is made anew because peers cannot talk that it would have talk; then that is left to the run."""


class PlanRevision:
    """Revision of one plan: tell what was `planned`, measure that, and ask whether it `stands`."""

    def __init__(self, links: LinkTable, *, tied: bool) -> None:
        """Nothing was planned yet.

        Args:
            links: what is known of links; measurements are to be put there.
            tied: whether first and last stage reduce an embedding that they share.
        """
        self._links, self._tied = links, tied
        self._turn = 0
        self._doubted: set[frozenset[str]] = set()
        """Pairs that were measured by the other end, too."""
        self._thought: Mapping[Pair, tuple[float, float]] = {}
        """Gbit/s and milliseconds of the links that are being measured, as they were estimated."""

    def seen(self, view: View) -> View:
        """Return the view on which the next plan is to be made."""
        return at_worst(view) if self._turn >= REVISIONS else view

    def planned(self, plan: Plan, view: View) -> list[list[Pair]]:
        """Return the rounds of disjoint pairs that are to be measured before `plan` begins; none where all are known.

        The first of a pair measures: of one whose rates were too good to be believed, the end that has not told them.

        Args:
            view: what was known when it was made.
        """
        used = pairs_of(plan, tied=self._tied)
        doubted = [pair for pair in self._links.doubtful(used) if frozenset(pair) not in self._doubted]
        self._doubted |= set(map(frozenset, doubted))
        pairs = [*self._links.unmeasured(used), *map(frozenset, doubted)]
        row = {peer: place for place, peer in enumerate(view.ids)}
        gbps, delays = view.estimated_gbps.values, view.estimated_ms.values
        both = [pair for one in pairs for pair in (tuple(sorted(one)), tuple(sorted(one, reverse=True)))]
        self._thought = {
            (one, other): (float(gbps[row[one], row[other]]), float(delays[row[one], row[other]]))
            for one, other in both
        }
        self._turn += 1
        first = {frozenset(pair): pair for pair in doubted}
        return [[first.get(frozenset(pair), pair) for pair in turn] for turn in in_rounds(pairs)]

    def stands(self) -> bool:
        """Whether the plan is to begin, now that its links were measured."""
        found = {pair: self._links.figures(*pair)[:2] for pair in self._thought}
        if any(gbps is None for gbps, _ in found.values()):
            return self._turn > MOST_REVISIONS
        if self._turn > REVISIONS:
            return True
        return not any(
            _differ(thought[0], found[pair][0], 0.0) or _differ(thought[1], found[pair][1], DIFFERENT_MS)
            for pair, thought in self._thought.items()
        )


def _differ(thought: float, found: float | None, least: float) -> bool:
    if found is None or abs(found - thought) <= least:
        return False
    return bool(np.maximum(found, thought) > DIFFERENT * np.minimum(found, thought))
