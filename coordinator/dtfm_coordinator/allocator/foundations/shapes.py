"""Shapes of a layout: which numbers of stages and replicas an owner's choices allow on a swarm."""

from collections.abc import Sequence
from dataclasses import dataclass

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.plan.plan import Plan


class NotEnoughNodes(UserError):
    """Error: more nodes are needed than there are, by `missing`."""

    def __init__(self, message: str, missing: int) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Shape:
    """Grid of stages and replicas."""

    stages: int
    replicas: int


def check_choices(planning: Planning, micro_batches: int, layers: int | None = None) -> None:
    """Check what the owner fixes of the layout against the job, however many nodes there are.

    Args:
        layers: number of the model's decoder layers; None: not known yet, and not checked.

    Raises:
        UserError: more stages than layers, or more replicas than micro-batches.
    """
    stages, replicas = planning.stages, planning.replicas
    if layers is not None and stages != "auto" and stages > layers:
        raise UserError(
            f"[plan] stages = {stages}, but the model has {layers} layers to share out: lower stages, or write "
            'stages = "auto"'
        )
    if replicas != "auto" and replicas > micro_batches:
        raise UserError(
            f"[plan] replicas = {replicas}, but a step has {micro_batches} micro-batches to share out: "
            "lower replicas or micro_batch"
        )


def check_forced(plan: Plan, micro_batches: int, layers: int) -> None:
    """Check that a layout that the owner forces fits the job.

    Raises:
        UserError: it is of another model, or of other steps.
    """
    if plan.layers != layers:
        raise UserError(f"--plan: its stages cover {plan.layers} layers and the model has {layers}")
    if len(plan.routes) != micro_batches:
        raise UserError(f"--plan: it has {len(plan.routes)} routes and a step has {micro_batches} micro-batches")


def fewest_nodes(planning: Planning) -> int:
    """Return the number of nodes that the owner's choices need at least."""
    return (1 if planning.stages == "auto" else planning.stages) * (
        1 if planning.replicas == "auto" else planning.replicas
    )


def for_fewer_nodes(planning: Planning, nodes: int) -> Planning:
    """Return the owner's choices without those for which `nodes` peers are too few: stages of unlike many peers first,
    then, where there are not even as many peers as stages, any number of stages."""
    if nodes >= fewest_nodes(planning):
        return planning
    has_stages = planning.stages == "auto" or nodes >= planning.stages
    return planning.model_copy(update={"replicas": "auto", "stages": planning.stages if has_stages else "auto"})


def has_shape(plan: Plan, planning: Planning) -> bool:
    """Whether a plan has the stages and replicas that the owner fixes."""
    counts = {len(plan.replicas(stage)) for stage in range(len(plan.stages))}
    return planning.stages in ("auto", len(plan.stages)) and (
        planning.replicas == "auto" or counts == {planning.replicas}
    )


def shape_words(counts: Sequence[int]) -> tuple[int, str]:
    """Return the number of stages, and the peers of a stage: one number where all have as many."""
    return len(counts), str(counts[0]) if len(set(counts)) == 1 else "+".join(map(str, counts))


def feasible_shapes(nodes: int, layers: int, micro_batches: int, planning: Planning) -> tuple[Shape, ...]:
    """Return every grid that the owner's choices, the layers and the micro-batches allow on `nodes` peers.

    Raises:
        NotEnoughNodes: the owner's choices need more nodes.
        UserError: more stages than layers, or more replicas than micro-batches.
    """
    check_choices(planning, micro_batches, layers)
    stages, replicas, needed = planning.stages, planning.replicas, fewest_nodes(planning)
    if nodes < needed:
        raise NotEnoughNodes(
            f"the job's [plan] needs {needed} nodes and {nodes} are here: waiting for {needed - nodes} more",
            needed - nodes,
        )
    return tuple(
        Shape(count, each)
        for count in (range(1, min(nodes, layers) + 1) if stages == "auto" else (stages,))
        for each in (range(1, min(nodes // count, micro_batches) + 1) if replicas == "auto" else (replicas,))
        if count * each <= nodes
    )
