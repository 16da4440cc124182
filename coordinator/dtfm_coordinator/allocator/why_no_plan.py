"""Why a search has found no plan, and what the owner can do about it."""

from itertools import pairwise

import numpy as np

from dtfm_coordinator.allocator.foundations.shapes import Shape
from dtfm_coordinator.allocator.problem.problem_arrays import Problem
from dtfm_coordinator.allocator.workload import Workload
from dtfm_protocol.process.quantities import bytes_in_words


def why_no_plan(work: Workload, posed: Problem, shapes: tuple[Shape, ...], fitted: bool) -> str:
    """What the owner is told where a search found nothing; `fitted`: layouts were within every peer's memory."""
    if fitted:
        return (
            "every layout needs a pair of peers that cannot reach each other: open a port on one side of such pairs, "
            "or fix fewer stages and replicas under [plan]"
        )
    demand = work.demand
    deepest = max(shape.stages for shape in shapes)
    ends = np.linspace(0, demand.layers, deepest + 1).astype(int).tolist()
    needs = [
        min(demand.memory_bytes(first, end, 1, recompute=anew) for anew in (False, True))
        for first, end in pairwise(ends)
    ]
    return (
        f"no split of the model's {demand.layers} layers over {len(posed.memory)} peers fits in their memory: at "
        f"{deepest} stages the smallest stage needs {bytes_in_words(min(needs))} and the largest "
        f"{bytes_in_words(max(needs))}, the largest peer has {bytes_in_words(posed.memory.max())} and the smallest "
        f"{bytes_in_words(posed.memory.min())}; add peers, or make the model or micro_batch smaller"
    )
