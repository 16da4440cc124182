"""Pairs of peers whose links a plan uses. Pure."""

from itertools import combinations, pairwise

from dtfm_protocol.plan.plan import Plan


def pairs_of(plan: Plan, *, tied: bool = False) -> frozenset[frozenset[str]]:
    """Return the pairs between which a step of `plan` sends tensors: neighbours of a route, and replicas of a stage.

    Args:
        tied: whether first and last stage reduce an embedding that they share.
    """
    groups = [plan.replicas(stage) for stage in range(len(plan.stages))]
    if tied:
        groups.append(tuple(dict.fromkeys((*groups[0], *groups[-1]))))
    return pairs_along(plan) | {frozenset(pair) for group in groups for pair in combinations(group, 2)}


def pairs_along(plan: Plan) -> frozenset[frozenset[str]]:
    """Return the pairs that are neighbours of a route."""
    return frozenset(frozenset(pair) for route in plan.pipelines for pair in pairwise(route))
