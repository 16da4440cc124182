"""Map of a plan: stages, pipelines, and the links that they use."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from dtfm_coordinator.swarm.overview.overview import HopView, PipelineView, PlanView, StageView
from dtfm_coordinator.swarm.overview.owner_words import plan_in_words
from dtfm_protocol.plan.plan import Plan

MOST_HOPS = 2000
"""Links of one map: a picture of more would show nobody anything."""
LinkFigures = Callable[[str, str], tuple[float | None, float | None, str]]
"""Function from the two ends of a link to its Gbit/s, its milliseconds one way, and its way."""


def plan_map(plan: Plan, link: LinkFigures) -> PlanView:
    """Return the map of `plan`; `link` tells what is known of the link from one peer to another."""
    hops = dict.fromkeys(pair for route in plan.pipelines for pair in pairwise(route))
    counts = Counter(plan.routes)
    return PlanView(
        version=plan.version,
        resumed=plan.resume.mark.step,
        reason=plan_in_words(plan),
        layers=plan.layers,
        micro_batches=len(plan.routes),
        stages=tuple(
            StageView(first=first + 1, last=end, members=plan.replicas(stage))
            for stage, (first, end) in enumerate(plan.stages)
        ),
        pipelines=tuple(PipelineView(members=route, micro_batches=counts[route]) for route in plan.pipelines),
        hops=tuple(_hop(*pair, link) for pair in list(hops)[:MOST_HOPS]),
    )


def _hop(sender: str, receiver: str, link: LinkFigures) -> HopView:
    gbps, latency_ms, way = link(sender, receiver)
    return HopView(sender=sender, receiver=receiver, gbps=gbps, latency_ms=latency_ms, way=way)
