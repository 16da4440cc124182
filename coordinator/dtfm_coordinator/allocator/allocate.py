"""The allocator that `serve` asks: from a view of the swarm to the plan with the shortest simulated step.

Three passes share the budget. A survey places every shape (stages x replicas) by its neighbourhood tilings and plays
each step (`makespan`). The best shapes are then searched by the paper's cost, once with a pipeline's whole share as
the message, as in the paper, and once with a single micro-batch's: a schedule that overlaps transfers pays between
the two, and the simulation says which placement it prefers. Last, the best are changed peer by peer (`trial.improve`),
where unequal devices, uneven shares and uneven numbers of replicas come in.
"""

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from dtfm_coordinator.allocator.budget import DEFAULT_SECONDS
from dtfm_coordinator.allocator.demand import ModelDemand, layer_seconds
from dtfm_coordinator.allocator.layout import Stages, Swarm
from dtfm_coordinator.allocator.makespan import Links
from dtfm_coordinator.allocator.paper_cost import PaperCostModel, Pipelines
from dtfm_coordinator.allocator.paper_plan import allocate_paper
from dtfm_coordinator.allocator.search import search
from dtfm_coordinator.allocator.shapes import NotEnoughNodes, Shape, feasible_shapes, ranked
from dtfm_coordinator.allocator.trial import Trial, Trials, improve
from dtfm_protocol.errors import UserError
from dtfm_protocol.job import Planning
from dtfm_protocol.plan import Cost, Plan
from dtfm_protocol.view import View

__all__ = ["NotEnoughNodes", "allocate", "allocate_paper"]

SURVEYED = 40
"""Most shapes that are looked at at all."""
SEARCHED = 3
"""Shapes that are searched."""
IMPROVED = 2
"""Placements that are changed peer by peer."""
IMPROVEMENTS = 200
"""Changes tried where the budget counts evaluations instead of seconds."""


def allocate(
    view: View,
    demand: ModelDemand,
    micro_batches: int,
    planning: Planning,
    seed: int = 0,
    budget: float | None = None,
    evaluations: int | None = None,
    available: Collection[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Plan:
    """Plan a job on a swarm.

    Args:
        micro_batches: of a step, over the whole swarm.
        planning: what the owner fixes; "auto" is tried in every feasible number.
        seed: of the search's own random numbers.
        budget: seconds, 1.2 where neither limit is given.
        evaluations: placements that the searches may look at in all. Without `budget`, the same arguments give the
            same plan, `seconds` and `history` apart.
        available: the peers that may take part, all of the view's unless given; the others stay idle.

    Raises:
        NotEnoughNodes: what the owner fixes needs more nodes.
        UserError: no split of the model fits in the peers' memory, no placement keeps to pairs that can talk, or
            nothing is known of any peer's speed.
    """
    started = clock()
    peers = tuple(peer for peer in view.ids if available is None or peer in available)
    shapes = feasible_shapes(len(peers), demand.layers, micro_batches, planning)
    nodes = [node for node in view.nodes if node.id in set(peers)]
    swarm = Swarm(
        demand=demand,
        links=Links.of(view),
        layer_seconds=layer_seconds(nodes, demand),
        memory={node.id: float("inf") if node.memory_bytes is None else node.memory_bytes for node in nodes},
        micro_batches=micro_batches,
        schedule=planning.schedule,
        wire=planning.wire,
    )
    if budget is None and evaluations is None:
        budget = DEFAULT_SECONDS
    allocation = _Allocation(swarm, peers, seed, budget, evaluations, lambda: clock() - started, clock)
    best = allocation.run(ranked(shapes, swarm), uneven=planning.replicas == "auto")
    if best is None:
        raise UserError(_impossible(swarm, shapes, allocation.trials.fitted))
    cost = best.cost
    unavailable = tuple(peer for peer in view.ids if peer not in set(peers))
    return best.plan.model_copy(
        update={
            "idle": (*best.plan.idle, *unavailable),
            "cost": Cost(
                kind="makespan",
                total=cost.total,
                data_parallel=cost.data_parallel,
                pipeline=cost.pipeline,
                compute=cost.compute,
            ),
            "seed": seed,
            "evaluations": allocation.evaluations,
            "seconds": clock() - started,
            "reason": _reason(best, allocation.trials),
            "history": tuple(allocation.trials.history),
        }
    )


class _Allocation:
    """One run of the three passes."""

    def __init__(
        self,
        swarm: Swarm,
        peers: tuple[str, ...],
        seed: int,
        budget: float | None,
        evaluations: int | None,
        elapsed: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._swarm, self._peers, self._seed = swarm, peers, seed
        self._budget, self._allowed, self._elapsed, self._clock = budget, evaluations, elapsed, clock
        self._alpha, self._beta = swarm.links.pairs(peers, peers)
        self._searched = 0
        self.trials = Trials(swarm, peers, elapsed)

    @property
    def evaluations(self) -> int:
        """Placements looked at: by the searches, and by simulation."""
        return self._searched + self.trials.count

    def run(self, shapes: tuple[Shape, ...], uneven: bool) -> Trial | None:
        """The best trial, if any placement is possible."""
        for shape in shapes[:SURVEYED]:
            if self._past(0.3) and self.trials.best() is not None:
                break
            self._survey(shape)
        even = sorted(
            (trial for trial in self.trials.best_of.values() if len(set(trial.counts)) == 1),
            key=lambda trial: trial.cost.total,
        )
        for number, trial in enumerate(even[:SEARCHED]):
            shape = Shape(len(trial.counts), trial.counts[0])
            self._search(shape, until=0.3 + 0.4 * (number + 1) / min(SEARCHED, len(even)))
        rng = np.random.default_rng(self._seed)
        leaders = sorted(self.trials.best_of.values(), key=lambda trial: trial.cost.total)[:IMPROVED]
        for number, leader in enumerate(leaders):
            until, tries = 0.7 + 0.3 * (number + 1) / len(leaders), self.trials.count + IMPROVEMENTS
            improve(self.trials, leader, uneven, rng, stop=partial(self._enough, until, tries))
        return self.trials.best()

    def _past(self, fraction: float) -> bool:
        return self._budget is not None and self._elapsed() >= fraction * self._budget

    def _enough(self, until: float, tries: int) -> bool:
        return self._past(until) if self._budget is not None else self.trials.count >= tries

    def _survey(self, shape: Shape) -> None:
        """Try the shape's tilings, or, where memory is short, stages of peers with like memory."""
        found = search(
            self._alpha,
            self._beta,
            stages=shape.stages,
            replicas=shape.replicas,
            activation_bytes=self._share_bytes(shape),
            gradient_bytes=self._gradient_bytes(shape),
            seed=self._seed,
            evaluations=shape.stages,
        )
        self._searched += found.evaluations
        if self.trials.attempt(self._named(found.pipelines)) is None:
            for stages in self._by_memory(shape):
                self.trials.attempt(stages)

    def _search(self, shape: Shape, until: float) -> None:
        """Search the shape by the paper's cost, with each of the two message sizes."""
        share = self._share_bytes(shape)
        sizes = (share, share * shape.replicas / self._swarm.micro_batches)
        for number, size in enumerate(sizes):
            seconds = None
            if self._budget is not None:
                seconds = max(0.0, (until * self._budget - self._elapsed()) / (len(sizes) - number))
            found = search(
                self._alpha,
                self._beta,
                stages=shape.stages,
                replicas=shape.replicas,
                activation_bytes=size,
                gradient_bytes=self._gradient_bytes(shape),
                seed=self._seed,
                seconds=seconds,
                evaluations=None if self._allowed is None else max(1, self._allowed // (len(sizes) * SEARCHED)),
                clock=self._clock,
            )
            self._searched += found.evaluations
            self.trials.attempt(self._named(found.pipelines))

    def _share_bytes(self, shape: Shape) -> float:
        """What one pipeline sends over a boundary in a step, one way."""
        each = self._swarm.demand.message_bytes(self._swarm.wire)
        return each * self._swarm.micro_batches / shape.replicas

    def _gradient_bytes(self, shape: Shape) -> float:
        """Of a middling stage."""
        demand = self._swarm.demand
        return demand.gradient_bytes(0, demand.layers, self._swarm.wire) / shape.stages

    def _named(self, pipelines: Pipelines) -> Stages:
        return tuple(tuple(self._peers[device] for device in stage) for stage in zip(*pipelines, strict=True))

    def _by_memory(self, shape: Shape) -> Iterator[Stages]:
        """Stages whose peers have like memory, so that no small peer holds large ones down."""
        roomy = sorted(range(len(self._peers)), key=lambda device: -self._swarm.memory[self._peers[device]])
        groups = np.array(roomy[: shape.stages * shape.replicas]).reshape(shape.stages, shape.replicas)
        model = PaperCostModel(
            self._alpha, self._beta, self._share_bytes(shape), self._gradient_bytes(shape), shape.replicas
        )
        yield self._named(model.arrange(groups.tolist())[1])
        yield self._named(tuple(map(tuple, groups.T.tolist())))


def _reason(best: Trial, trials: Trials) -> str:
    """Why this plan, in one line."""
    others = sorted(
        (trial for trial in trials.best_of.values() if trial.counts != best.counts), key=lambda trial: trial.cost.total
    )
    stages, each = _shape_words(best.counts)
    line = f"{stages} {'stage' if stages == 1 else 'stages'} x {each} {'peer' if each == '1' else 'peers'}"
    line += f": {best.cost.total:.3g} s a step predicted"
    if others:
        shown = (f"{' x '.join(map(str, _shape_words(trial.counts)))} {trial.cost.total:.3g} s" for trial in others[:3])
        line += f"; {', '.join(shown)}"
    return line


def _shape_words(counts: tuple[int, ...]) -> tuple[int, str]:
    """The number of stages, and the peers of a stage: one number where all have as many."""
    return len(counts), str(counts[0]) if len(set(counts)) == 1 else "+".join(map(str, counts))


def _impossible(swarm: Swarm, shapes: tuple[Shape, ...], fitted: bool) -> str:
    """Why there is no plan."""
    if fitted:
        return (
            "every layout needs a pair of peers that cannot reach each other: open a port on one side of such pairs, "
            "or fix fewer stages and replicas under [plan]"
        )
    demand, gigabyte = swarm.demand, 1e9
    deepest = max(shape.stages for shape in shapes)
    ends = np.linspace(0, demand.layers, deepest + 1).astype(int).tolist()
    needs = [demand.memory_bytes(first, end, 1) for first, end in pairwise(ends)]
    have = swarm.memory.values()
    return (
        f"no split of the model's {demand.layers} layers over {len(swarm.memory)} peers fits in their memory: at "
        f"{deepest} stages the smallest stage needs {min(needs) / gigabyte:.3g} GB and the largest "
        f"{max(needs) / gigabyte:.3g} GB, the largest peer has {max(have) / gigabyte:.3g} GB and the smallest "
        f"{min(have) / gigabyte:.3g} GB; add peers, or make the model or micro_batch smaller"
    )
