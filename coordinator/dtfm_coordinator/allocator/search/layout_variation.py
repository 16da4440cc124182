"""New stages out of known ones: mutation and crossover of the evolutionary search over layouts (`layout_evolution`)."""

import numpy as np

from dtfm_coordinator.allocator.search.starts import Stages


def regrouped(stages: Stages, most_stages: int, most_peers: int, rng: np.random.Generator) -> Stages:
    """One stage split in two, or two neighbours merged; the same where neither can be.

    Args:
        most_stages: of a layout: the model's layers.
        most_peers: of a merged stage: the step's micro-batches.
    """
    place = int(rng.integers(len(stages)))
    if rng.random() < 0.5 and len(stages[place]) > 1 and len(stages) < most_stages:
        cut = len(stages[place]) // 2
        halves = [stages[place][:cut], stages[place][cut:]]
        return [*stages[:place], *halves, *stages[place + 1 :]]
    if place + 1 < len(stages):
        both = [*stages[place], *stages[place + 1]][:most_peers]
        return [*stages[:place], both, *stages[place + 2 :]]
    return stages


def lengthened(stages: Stages, idle: list[int], most_stages: int, rng: np.random.Generator) -> Stages:
    """One more stage, of as many idle peers as one beside it has, or one stage fewer, whose peers go home; the same
    where neither can be.

    Args:
        most_stages: of a layout: the model's layers.
    """
    place = int(rng.integers(len(stages)))
    if rng.random() < 0.5 and len(idle) >= len(stages[place]) and len(stages) < most_stages:
        drawn: list[int] = rng.choice(idle, len(stages[place]), replace=False).tolist()
        place += int(rng.integers(2))  # before it, or behind it
        return [*stages[:place], drawn, *stages[place:]]
    return [*stages[:place], *stages[place + 1 :]] if len(stages) > 1 else stages


def crossed(one: Stages, other: Stages, rng: np.random.Generator) -> Stages:
    """Peers in the stage that either parent gives them, repaired to the first parent's counts."""
    where = {peer: stage for stage, members in enumerate(other) for peer in members}
    wanted: Stages = [[] for _ in one]
    for stage, members in enumerate(one):
        for peer in members:
            chosen = where.get(peer, stage) if rng.random() < 0.5 else stage
            wanted[chosen].append(peer)
    for peer in where:
        if all(peer not in members for members in one):
            wanted[where[peer]].append(peer)
    spare = []
    for stage, members in enumerate(wanted):
        spare += members[len(one[stage]) :]
        del members[len(one[stage]) :]
    for stage, members in enumerate(wanted):
        while len(members) < len(one[stage]):
            members.append(spare.pop(int(rng.integers(len(spare)))))
    return wanted
