"""Placements from which the search by the simulated step starts, and placements that are made without a search."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations
from math import comb, perm

import numpy as np

from dtfm_coordinator.allocator.foundations.links import pipeline_seconds
from dtfm_coordinator.allocator.foundations.neighbourhoods import Nearness, nearness, tiled
from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.problem.problem_arrays import Problem

Stages = list[list[int]]
"""Numbers of the peers of each stage."""


def near_by_message(problem: Problem) -> Nearness:
    """Return distances between peers by the seconds that one micro-batch's message takes."""
    return nearness(pipeline_seconds(problem.alpha, problem.beta, problem.message_bytes))


def starts(problem: Problem, near: Nearness, shape: Shape, uneven: bool) -> Iterator[Stages]:
    """Yield a few placements of one shape, each right for some kind of swarm.

    They are pipelines of neighbours, and stages of neighbours (`neighbourhoods.tiled`), by what a message takes; peers
    of like
    speed or like memory in one stage, or in one pipeline; and, where numbers may be `uneven`, all peers, dealt out so
    that the stages are equally fast.
    """
    count, peers = shape.stages * shape.replicas, len(problem.forward)
    if count > 1:
        for width in dict.fromkeys((shape.stages, 1)):
            yield tiled(near, shape.stages, shape.replicas, width)[:count].reshape(shape.stages, -1).tolist()
    else:
        yield [[int((problem.forward + problem.backward).argmin())]]
    seconds = problem.forward + problem.backward
    fastest = np.argsort(seconds, kind="stable")[:count]
    yield fastest.reshape(shape.replicas, shape.stages).T.tolist()
    roomy = np.argsort(-problem.memory, kind="stable")[:count]
    if problem.memory.min() < problem.memory.max():
        yield roomy.reshape(shape.stages, shape.replicas).tolist()
        yield roomy.reshape(shape.replicas, shape.stages).T.tolist()
    if uneven and shape.stages > 1 and peers <= shape.stages * problem.micro_batches:
        yield dealt_out(problem, shape.stages)


def in_order(problem: Problem, shapes: Sequence[Shape]) -> Iterator[Stages]:
    """Yield one placement of each shape: peers in the view's order, neighbours in one stage."""
    for shape in shapes:
        yield np.arange(shape.stages * shape.replicas).reshape(shape.stages, -1).tolist()


def at_random(problem: Problem, shapes: Sequence[Shape], seed: int) -> Iterator[Stages]:
    """Yield one placement of each shape, uniformly drawn."""
    rng = np.random.default_rng(seed)
    for shape in shapes:
        drawn = rng.permutation(len(problem.forward))[: shape.stages * shape.replicas]
        yield drawn.reshape(shape.stages, -1).tolist()


def every(problem: Problem, shapes: Sequence[Shape], uneven: bool) -> Iterator[Stages]:
    """Yield every placement of the shapes, or, where numbers may be `uneven`, of any peers on as many stages."""
    peers = range(len(problem.forward))
    depths = sorted({shape.stages for shape in shapes})
    for shape in () if uneven else shapes:
        for order in permutations(peers, shape.stages * shape.replicas):
            yield [list(part) for part in batched(order, shape.replicas)]
    for count in peers if uneven else ():
        for order in permutations(peers, count + 1):
            for depth in depths:
                for cuts in combinations(range(1, count + 1), depth - 1):
                    yield [list(order[first:end]) for first, end in pairwise((0, *cuts, count + 1))]


def placements(problem: Problem, shapes: Sequence[Shape], uneven: bool) -> int:
    """Return the number of placements that `every` yields."""
    peers = len(problem.forward)
    if not uneven:
        return sum(perm(peers, shape.stages * shape.replicas) for shape in shapes)
    depths = {shape.stages for shape in shapes}
    return sum(perm(peers, count) * comb(count - 1, depth - 1) for count in range(1, peers + 1) for depth in depths)


def batched(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield runs of `size` of a sequence; the last may be shorter."""
    return (order[first : first + size] for first in range(0, len(order), size))


def dealt_out(problem: Problem, stages: int) -> Stages:
    """Return all peers in stages, the fastest first, each in the stage that is slowest so far and has room."""
    speeds = 1.0 / (problem.forward + problem.backward)
    placed: Stages = [[] for _ in range(stages)]
    strength = np.zeros(stages)
    for peer in np.argsort(-speeds, kind="stable").tolist():
        chosen = int(strength.argmin())
        placed[chosen].append(peer)
        strength[chosen] += speeds[peer]
        if len(placed[chosen]) == problem.micro_batches:
            strength[chosen] = np.inf
    return placed
