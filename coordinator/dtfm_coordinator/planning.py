"""From a view to the plan that is published: the owner's forced layout, or the allocator's."""

from dtfm_protocol.errors import UserError
from dtfm_protocol.plan import Plan
from dtfm_protocol.resolved import ResolvedJob
from dtfm_protocol.view import View


class NotEnoughNodes(UserError):
    """More nodes are needed."""

    def __init__(self, message: str, missing: int) -> None:
        super().__init__(message)
        self.missing = missing


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

    def plan(self, view: View) -> Plan:
        """A plan for the peers of `view`, without version.

        Raises:
            NotEnoughNodes: the owner's choices need more.
            UserError: no layout fits.
        """
        if self._forced is not None:
            return self._place(self._forced, view)
        raise UserError("x")

    def _check_forced(self, plan: Plan) -> None:
        layers = int(self._job.config["num_hidden_layers"])
        if plan.layers != layers:
            raise UserError(f"--plan: its stages cover {plan.layers} layers and the model has {layers}")
        if len(plan.routes) != self._job.training.micro_batches:
            count = self._job.training.micro_batches
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
        return plan.renamed(names).model_copy(
            update={"idle": tuple(free[len(placeholders) :]), "reason": "forced by --plan", **defaults}
        )
