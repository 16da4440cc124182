"""Alarm for norms that lone stages vote: nobody else holds what they sum, so only what is usual can contradict. Pure.

A norm that is too large makes the clip take the step away from everybody; one that is too small takes the clip away.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from statistics import median_low

from dtfm_node.engine.part_alarm import NormHistory, Strain
from dtfm_node.engine.step_messages import arbiter_of
from dtfm_protocol.plan.plan import Plan

BETWEEN_STAGES = 1e5
"""Factor beyond the norms of the other stages at which a lone stage's norm is an alarm: it has no history at first, and
would have a false one if it began with a lie. Honest stages of new models are hundreds of times apart."""


class LoneStageAlarm:
    """Alarm of a plan's arbiter. It trusts its own stage's norm, and judges the others' by that."""

    def __init__(self, plan: Plan, lenience: float = 1.0) -> None:
        """Know nobody's norms yet; `lenience` is that of `PartAlarm`."""
        self._stages = [plan.replicas(stage) for stage in range(len(plan.stages))]
        self._own = plan.stage_of(arbiter_of(plan))
        self._first, self._lenience = plan.resume.mark.step + 1, lenience
        self._past: dict[str, NormHistory] = defaultdict(NormHistory)

    def judge(self, step: int, squares: Mapping[str, float], targets: int = 1) -> dict[str, Strain]:
        """Return how near to an alarm the vote of each lone stage's peer is; a step without an alarm counts as usual.

        Args:
            squares: sum of squares that each peer of the plan has voted.
            targets: number of targets of the step: the mean over few has more noise.
        """
        norms = [math.sqrt(max(squares[peer] for peer in peers)) for peers in self._stages]
        lenience = self._lenience if step == self._first else 1.0
        strains: dict[str, Strain] = {}
        for stage, (peer, *others) in enumerate(self._stages):
            if not others and stage != self._own:
                past = self._past[peer]
                most = min(past.largest(targets), self._most_beside(stage, norms)) * lenience
                least = past.smallest(targets) / lenience
                small = least / norms[stage] if norms[stage] > 0 else math.inf if least > 0 else 0.0
                strains[peer] = Strain(norms[stage] / most, small)
        if not any(strain.fault for strain in strains.values()):
            for peer in strains:
                self._past[peer].add(norms[self._stages.index((peer,))], targets)
        return strains

    def _most_beside(self, stage: int, norms: list[float]) -> float:
        """Return the largest norm of a stage beside those of the others, in the same step."""
        others = [norm for other, norm in enumerate(norms) if other != stage]
        assert self._own is not None, "the arbiter serves a stage"
        beside = max(norms[self._own], median_low(others))
        return BETWEEN_STAGES * beside if beside > 0 else math.inf
