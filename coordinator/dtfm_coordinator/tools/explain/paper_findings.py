"""Findings by the paper's communication cost of a plan (arXiv 2206.01288, section 3), by stage and boundary.

A stage of n peers with g bytes of gradients costs the slowest member's sum over the others of
`2 (alpha + g / (n beta))`; a boundary, with a bytes a pipeline, the slowest pair's `alpha + a / beta`, forward and
backward. The step pays the slowest stage and every boundary.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dtfm_coordinator.allocator.foundations.links import pipeline_seconds
from dtfm_coordinator.allocator.paper.paper_cost import data_parallel_seconds
from dtfm_coordinator.tools.formatting import link_named
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import View

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StagePart:
    """Data-parallel cost of one stage."""

    peers: tuple[str, ...]
    seconds: float
    """Seconds of its slowest member."""
    slowest: str
    link: Pair | None
    """Link that costs that member most; None for a single peer."""


@dataclass(frozen=True, slots=True)
class BoundaryPart:
    """Seconds of messages between two neighbouring stages, and the slowest pair each way."""

    forward: float
    forward_pair: Pair
    backward: float
    backward_pair: Pair


@dataclass(frozen=True, slots=True)
class PaperFindings:
    """Cost of a plan in its parts."""

    stages: tuple[StagePart, ...]
    boundaries: tuple[BoundaryPart, ...]
    planned: float | None
    """Total in seconds that the plan itself states; None: it states none."""

    @property
    def data_parallel(self) -> float:
        """Seconds of the slowest stage's all-reduce, which a step pays once."""
        return max(stage.seconds for stage in self.stages)

    @property
    def pipeline(self) -> float:
        """Seconds of the messages over all boundaries, both ways."""
        return sum(boundary.forward + boundary.backward for boundary in self.boundaries)

    @property
    def total(self) -> float:
        """Seconds of communication a step."""
        return self.data_parallel + self.pipeline


def paper_findings(plan: Plan, view: View, activation_bytes: float, gradient_bytes: float) -> PaperFindings:
    """Return the paper's cost of a plan in its parts.

    Args:
        activation_bytes: bytes that a pipeline's whole share of a step sends over one boundary.
        gradient_bytes: bytes of gradients of one stage.

    Raises:
        UserError: the view lacks a peer of the plan, two pipelines share a peer, or a pair that must talk cannot.
    """
    rows = {peer: row for row, peer in enumerate(view.ids)}
    missing = [peer for peer in plan.peers if peer not in rows]
    if missing:
        raise UserError(f"the view has no node {missing[0]!r}, which the plan gives work to: use the plan's own view")
    pipelines = plan.pipelines
    if len(plan.peers) != len(pipelines) * len(plan.stages):
        raise UserError(
            "the paper's cost is of pipelines that share no peer, and these do: explain the plan with --job"
        )
    alpha, beta = view.alpha(), view.beta()
    reduce = data_parallel_seconds(alpha, beta, gradient_bytes, len(pipelines))
    send = pipeline_seconds(alpha, beta, activation_bytes)
    stages = []
    for stage in range(len(plan.stages)):
        group = plan.replicas(stage)
        block = reduce[np.ix_([rows[peer] for peer in group], [rows[peer] for peer in group])]
        slowest = int(block.sum(axis=1).argmax())
        link = (group[slowest], group[int(block[slowest].argmax())]) if len(group) > 1 else None
        stages.append(StagePart(group, float(block[slowest].sum()), group[slowest], link))
    boundaries = []
    for here, there in pairwise(range(len(plan.stages))):
        pairs = [(route[here], route[there]) for route in pipelines]
        forward = max(pairs, key=lambda pair: send[rows[pair[0]], rows[pair[1]]])
        backward = max(
            ((later, earlier) for earlier, later in pairs), key=lambda pair: send[rows[pair[0]], rows[pair[1]]]
        )
        ways = [float(send[rows[sender], rows[receiver]]) for sender, receiver in (forward, backward)]
        boundaries.append(BoundaryPart(ways[0], forward, ways[1], backward))
    found = PaperFindings(tuple(stages), tuple(boundaries), plan.cost.total if plan.cost is not None else None)
    if not np.isfinite(found.total):
        cut = [one.link for one in stages if one.link is not None and np.isinf(one.seconds)]
        cut += [one.forward_pair for one in boundaries if np.isinf(one.forward)]
        cut += [one.backward_pair for one in boundaries if np.isinf(one.backward)]
        raise UserError(
            f"the plan needs {link_named(*cut[0])}, which has 0 Gbit/s on this view: plan anew on this view"
        )
    return found
