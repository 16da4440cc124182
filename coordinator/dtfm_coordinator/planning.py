"""From a view to the plan that is published: the owner's forced layout, or the allocator's."""

from functools import cached_property

from dtfm_coordinator.allocator.allocate import NotEnoughNodes, allocate
from dtfm_coordinator.allocator.demand import ModelDemand, layer_seconds
from dtfm_coordinator.allocator.makespan import Links, makespan
from dtfm_protocol.errors import UserError
from dtfm_protocol.model.sizes import activation_bytes, model_sizes
from dtfm_protocol.plan import Cost, Plan
from dtfm_protocol.resolved import ResolvedJob
from dtfm_protocol.view import View


class Planner:
    """Plans one job, as often as the swarm changes."""

    def __init__(self, job: ResolvedJob, forced: Plan | None, seed: int) -> None:
        self._job, self._forced, self._seed = job, forced, seed
        if forced is not None:
            self._check_forced(forced)

    @property
    def fewest_nodes(self) -> int:
        """How many nodes the owner's choices need at least."""
        if self._forced is not None:
            return len(self._forced.peers)
        stages, replicas = self._job.plan.stages, self._job.plan.replicas
        return (1 if stages == "auto" else stages) * (1 if replicas == "auto" else replicas)

    @cached_property
    def demand(self) -> ModelDemand:
        """What the job's model and micro-batches ask of peers."""
        training, sizes = self._job.training, model_sizes(self._job.config)
        kept = activation_bytes(self._job.config, training.micro_batch, training.sequence_length, training.precision)
        tokens = training.micro_batch * training.sequence_length
        per_layer = sum(sizes.layer_parameters) / sizes.layers
        return ModelDemand(
            layer_parameters=sizes.layer_parameters,
            embedding_parameters=sizes.embedding_parameters,
            head_parameters=sizes.head_parameters,
            tied_parameters=sizes.tied_parameters,
            message_values=tokens * sizes.hidden_size,
            layer_activation_bytes=kept,
            head_bytes=sizes.logits_bytes(training.micro_batch, training.sequence_length, training.precision),
            # A matrix of p parameters costs 2 p FLOP a token, in the head as in a layer.
            head_layers=sizes.head_parameters / per_layer,
            layer_flops=2 * per_layer * tokens,
        )

    def plan(self, view: View) -> Plan:
        """A plan for the peers of `view`, without version.

        Raises:
            NotEnoughNodes: the owner's choices need more.
            UserError: no layout fits.
        """
        if self._forced is not None:
            return self._place(self._forced, view)
        return allocate(view, self.demand, self._job.training.micro_batches, self._job.plan, self._seed)

    def _check_forced(self, plan: Plan) -> None:
        layers = self.demand.layers
        if plan.layers != layers:
            raise UserError(f"--plan: its stages cover {plan.layers} layers and the model has {layers}")
        count = self._job.training.micro_batches
        if len(plan.routes) != count:
            raise UserError(f"--plan: it has {len(plan.routes)} routes and a step has {count} micro-batches")

    def _place(self, plan: Plan, view: View) -> Plan:
        """The forced plan with its placeholders replaced by peers, in the order in which they came."""
        known = set(view.ids)
        free = [peer for peer in view.ids if peer not in plan.peers]
        placeholders = [name for name in plan.peers if name not in known]
        if len(placeholders) > len(free):
            missing = len(placeholders) - len(free)
            raise NotEnoughNodes(f"waiting for {missing} more nodes: the forced plan needs {len(plan.peers)}", missing)
        names = dict(zip(placeholders, free, strict=False))
        defaults = {
            key: getattr(self._job.plan, key) for key in ("schedule", "wire") if key not in plan.model_fields_set
        }
        placed = plan.renamed(names).model_copy(
            update={"idle": tuple(free[len(placeholders) :]), "reason": "forced by --plan", **defaults}
        )
        return placed.model_copy(update={"cost": self._predict(placed, view)})

    def _predict(self, plan: Plan, view: View) -> Cost:
        """What the simulated step says of a plan that was not searched for."""
        speeds = layer_seconds([node for node in view.nodes if node.id in plan.peers], self.demand)
        ranges = {peer: plan.stages[stage] for stage in range(len(plan.stages)) for peer in plan.replicas(stage)}
        seconds = {peer: self.demand.stage_seconds(*ranges[peer], speeds[peer]) for peer in plan.peers}
        gradients = [self.demand.gradient_bytes(first, end, plan.wire) for first, end in plan.stages]
        cost = makespan(plan, Links.of(view), seconds, self.demand.message_bytes(plan.wire), gradients)
        return Cost(
            kind="makespan",
            total=cost.total,
            data_parallel=cost.data_parallel,
            pipeline=cost.pipeline,
            compute=cost.compute,
        )
