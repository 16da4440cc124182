"""Revision of a plan that was made on estimates: its links are measured before they carry anything, and where they are
others than was thought it is made anew. Pure.

In a stage of many replicas each has a link with each. So many nobody waits for: some rounds are measured, those along
pipelines first, and of the other pairs it is only tried whether they can talk. What these carry training's frames tell.

While nobody trains yet, a round takes as long however many measure in it. So before a first plan those who are free
measure, too, where estimates are poor, and what is better than was thought there is a reason for another plan. Those
who did so while the last ones were waited for do not again: a round waits for the slowest pair in it.

Whoever picks the best of many estimates picks those that are too good: so what was not measured counts at its estimate
for the first plans, and at the far end of its spread for the last, which then has little to lose.
"""

from collections.abc import Collection

import numpy as np

from dtfm_coordinator.links.chosen_pairs import in_rounds
from dtfm_coordinator.links.filled_rounds import filled
from dtfm_coordinator.links.link_table import LinkTable
from dtfm_coordinator.links.plan_pairs import pairs_along, pairs_of
from dtfm_coordinator.links.probe_rounds import Pair
from dtfm_coordinator.links.view_bounds import at_worst
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

DIFFERENT = 1.25
"""Ratio of a link's rate to its estimate, either way, from which the plan is made anew. Of its delay likewise, and of
`DIFFERENT_MS` at least."""
DIFFERENT_MS = 5.0
REVISIONS = 2
"""Times that a plan is made anew because links are slower or faster than was thought, while others train."""
FIRST_REVISIONS, FIRST_ROUNDS = 5, 10
"""The first plan, for which everybody waits only once, is made anew more often, until so many rounds were measured."""
MOST_REVISIONS = 6
"""Times that it is made anew because peers cannot talk that it would have talk; then that is left to the run."""
MOST_ROUNDS, HURRIED_ROUNDS = 6, 2
"""Rounds that are measured before a plan stands or is made anew: each takes some seconds. And where it is hurried."""
Round = list[Pair]
"""Disjoint pairs that measure at the same time, the first of each the other."""


class PlanRevision:
    """Revision of one plan: tell what was `planned`, measure that, try the `doors` that are left, measure who did not
    answer there (`shut`), and ask whether it `stands`."""

    def __init__(
        self,
        links: LinkTable,
        *,
        tied: bool,
        carried: Collection[frozenset[str]] = frozenset(),
        first: bool = False,
        rehearsed: Collection[str] = frozenset(),
        hurried: bool = False,
    ) -> None:
        """Nothing was planned yet.

        Args:
            links: what is known of links; measurements are to be put there.
            tied: whether first and last stage reduce an embedding that they share.
            carried: pairs whose links carry training already; a link of which not even the delay is known has come
                back, and is no such one.
            first: whether no plan was in force yet.
            rehearsed: peers among which rounds were filled before, while others were waited for.
            hurried: whether a plan is wanted soon, and a better one later, as training hardly goes on: few of its links
                are measured, and it is made anew only where peers cannot talk.
        """
        self._links, self._tied, self._carried = links, tied, frozenset(carried)
        self._left: list[frozenset[str]] = []
        """Pairs of the plan that are not measured, as there are too many."""
        self._first, self._turn, self._rounds, self._last = first, 0, 0, False
        self._rehearsed, self._hurried = rehearsed, hurried
        self._most = HURRIED_ROUNDS if hurried else MOST_ROUNDS
        self._doubted: set[frozenset[str]] = set()
        """Pairs that were measured by the other end, too."""
        self._view: View | None = None
        """What was known when the plan was made."""
        self._thought: dict[Pair, tuple[float, float]] = {}
        """Gbit/s and milliseconds of the links that are being measured, as they were estimated."""
        self._beside: set[frozenset[str]] = set()
        """Pairs that are measured though the plan does not use them."""

    def seen(self, view: View) -> View:
        """Return the view on which the next plan is to be made."""
        return at_worst(view) if self._is_spent else view

    @property
    def _is_spent(self) -> bool:
        """Whether the next plan is the last that is made because links are others than was thought."""
        if self._first:
            return self._turn >= FIRST_REVISIONS or self._rounds >= FIRST_ROUNDS
        return self._turn >= REVISIONS

    def planned(self, plan: Plan, view: View) -> list[Round]:
        """Return the rounds of disjoint pairs that are to be measured before `plan` begins; none where all are known.

        The first of a pair measures: of one whose rates were too good to be believed, the end that has not told them.

        Args:
            view: what was known when it was made.
        """
        used = pairs_of(plan, tied=self._tied)
        doubted = [pair for pair in self._links.doubtful(used) if frozenset(pair) not in self._doubted]
        self._doubted |= set(map(frozenset, doubted))
        carried = {pair for pair in used & self._carried if self._links.delay(*pair) is not None}
        pairs = [*self._links.unmeasured(used - carried), *map(frozenset, doubted)]
        rounds, most = in_rounds(pairs), self._most
        if len(rounds) > most:
            before = pairs_along(plan) | set(map(frozenset, doubted))
            rounds = in_rounds(pair for pair in pairs if pair in before)[:most]
            rounds += in_rounds(pair for pair in pairs if pair not in before)[: most - len(rounds)]
        first = {frozenset(pair): pair for pair in doubted}
        rounds = [[first.get(frozenset(pair), pair) for pair in turn] for turn in rounds]
        if self._first:
            rounds = filled(rounds, view, self._rehearsed)
        chosen = {frozenset(pair) for turn in rounds for pair in turn}
        self._left, self._beside = sorted(set(pairs) - chosen, key=sorted), chosen - set(pairs)
        self._view, self._thought = view, {}
        self._last = self._is_spent or self._hurried
        self._turn, self._rounds = self._turn + 1, self._rounds + len(rounds)
        return self._expecting(rounds)

    def doors(self) -> dict[str, tuple[str, ...]]:
        """Return who is to try to whom it can talk, of the plan's pairs that are not measured."""
        found: dict[str, list[str]] = {}
        for pair in self._left:
            one, other = sorted(pair)
            if self._links.delay(one, other) is None:
                teller, asked = (one, other) if len(found.get(one, ())) <= len(found.get(other, ())) else (other, one)
                found.setdefault(teller, []).append(asked)
        return {peer: tuple(others) for peer, others in found.items()}

    def shut(self) -> list[Round]:
        """Return the rounds of pairs that are to be measured because one has not answered the other."""
        silent = [pair for pair in self._left if self._links.delay(*pair) is None]
        return self._expecting(in_rounds(silent)[: self._most])

    def _expecting(self, rounds: list[Round]) -> list[Round]:
        """Remember what is thought of pairs that are measured."""
        assert self._view is not None
        row = {peer: place for place, peer in enumerate(self._view.ids)}
        gbps, delays = self._view.estimated_gbps.values, self._view.estimated_ms.values
        for one, other in (pair for turn in rounds for link in turn for pair in (link, link[::-1])):
            here, there = row[one], row[other]
            self._thought[one, other] = float(gbps[here, there]), float(delays[here, there])
        return rounds

    def stands(self) -> bool:
        """Whether the plan is to begin, now that its links were measured."""
        found = {pair: self._links.figures(*pair)[:2] for pair in self._thought}
        if any(gbps is None for pair, (gbps, _) in found.items() if frozenset(pair) not in self._beside):
            return self._turn > MOST_REVISIONS
        if self._last:
            return True
        return not any(
            _differ(thought[0], gbps, 0.0) or _differ(thought[1], milliseconds, DIFFERENT_MS)
            for pair, thought in self._thought.items()
            for gbps, milliseconds in [found[pair]]
            if frozenset(pair) not in self._beside or (gbps or 0.0) > thought[0]
        )


def _differ(thought: float, found: float | None, least: float) -> bool:
    if found is None or abs(found - thought) <= least:
        return False
    return bool(np.maximum(found, thought) > DIFFERENT * np.minimum(found, thought))
