"""Planner of a job: from a view of the swarm to the plan that is published, the owner's forced layout or the
allocator's."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.foundations.shapes import (
    NotEnoughNodes,
    check_choices,
    check_forced,
    fewest_nodes,
    for_fewer_nodes,
)
from dtfm_coordinator.allocator.job_demand import requirements
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand, apart_of, memory_needed
from dtfm_coordinator.allocator.workload import Workload, as_cost, is_soon_predicted, predict
from dtfm_coordinator.links.plan_pairs import pairs_of
from dtfm_protocol.data.batches import check_corpus
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.amendment import Settings
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import actions_of, most_in_flight
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.view.view import View


class UnmeasuredLinks(UserError):
    """Error: the owner's layout has `pairs` of nodes talk to each other whose links could not be measured."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        some = ", ".join(" and ".join(map(short, pair)) for pair in pairs[:3])
        more = f" and {len(pairs) - 3} more pairs" if len(pairs) > 3 else ""
        super().__init__(
            f"--plan: these nodes are to talk to each other, and their link could not be measured: {some}{more}"
        )
        self.pairs = pairs


class Planner:
    """Planner of one job, asked as often as the swarm changes."""

    def __init__(self, job: ResolvedJob, demand: ModelDemand, forced: Plan | None, seed: int) -> None:
        self._job, self._forced, self._seed = job, forced, seed
        self.settings = Settings.of(job)
        """Values of the job for which plans are made now."""
        self._workload = Workload(demand, job.training.micro_batches, job.plan)
        self.is_changed = False
        """Whether the owner has fixed another layout since the last plan."""
        if forced is not None:
            self._check_forced(forced)
        else:
            check_choices(job.plan, job.training.micro_batches, demand.layers)

    @property
    def is_forced(self) -> bool:
        """Whether the owner has fixed the layout."""
        return self._forced is not None

    def force(self, plan: Plan) -> None:
        """Have the next plan have the layout of `plan`.

        Raises:
            UserError: it does not fit the job.
        """
        self._check_forced(plan)
        self._forced, self.is_changed = plan, True

    def check(self, settings: Settings) -> None:
        """Check that steps of the job with these values can be planned for, however many nodes there are.

        Raises:
            UserError: no layout can be of such steps, or the text is not enough for one.
        """
        training = settings.training
        if self._forced is not None:
            check_forced(self._forced, training.micro_batches, self.layers)
        else:
            check_choices(settings.plan, training.micro_batches, self.layers)
        check_corpus(self._job.corpus, training, self._job.evaluation)

    def amend(self, settings: Settings) -> None:
        """Have the next plans be made for steps with these values; it may take seconds.

        Raises:
            UserError: as `check`.
        """
        self.check(settings)
        training, demand = settings.training, self._workload.demand
        if training.micro_batch != self.settings.training.micro_batch:
            demand = requirements(self._job.config, training)
        self._workload = Workload(demand, training.micro_batches, settings.plan)
        self.settings = settings

    @property
    def horizon(self) -> float:
        """Seconds within which a move must pay back."""
        return self.settings.plan.horizon

    @property
    def layers(self) -> int:
        """Number of decoder layers of the model."""
        return self._workload.demand.layers

    @property
    def fewest_nodes(self) -> int:
        """Number of nodes that the owner's choices need at least, or the forced layout has."""
        if self._forced is not None:
            return len(self._forced.peers)
        return fewest_nodes(self.settings.plan)

    @property
    def fewest_in_run(self) -> int:
        """Number of nodes with which a run that has begun may go on, where memory allows it."""
        return self.fewest_nodes if self.is_forced or self.settings.plan.strict else 1

    def plan(
        self,
        view: View,
        in_force: Plan | None = None,
        horizon: float | None = None,
        standstill: float = 0.0,
        begun: Plan | None = None,
    ) -> Plan:
        """Return a plan for the peers of `view`, without version.

        Args:
            in_force: plan under which peers hold their state now; None: there was none, and no fewer nodes than the
                owner's choices need will do.
            horizon: seconds within which a move must pay back, if that is less than the job allows.
            standstill: seconds that a change takes besides moving state.
            begun: plan that was made on about the same view, just now: the search begins with it, and takes less time.

        Raises:
            NotEnoughNodes: the owner's choices need more nodes.
            UserError: no layout fits.
        """
        self.is_changed, view = False, self._at_present_size(view)
        if self._forced is not None:
            return self._place(self._forced, view, in_force)
        planning, nodes, lacking = self._workload.planning, len(view.ids), ""
        if in_force is not None and self.fewest_in_run <= nodes < self.fewest_nodes:
            planning = for_fewer_nodes(planning, nodes)
            lacking = f"; the job's [plan] needs {self.fewest_nodes} nodes and {nodes} are here: it goes on with those"
        if horizon is not None and horizon < planning.horizon:
            planning = planning.model_copy(update={"horizon": horizon})
        work = replace(self._workload, planning=planning)
        plan = allocate(view, work, self._seed, in_force=in_force, standstill=standstill, begun=begun)
        return plan.model_copy(update={"reason": f"{plan.reason}{lacking}"}) if lacking else plan

    @property
    def is_tied(self) -> bool:
        """Whether first and last stage reduce an embedding that they share."""
        return self._workload.demand.trained_tied_parameters > 0

    def priced(self, plan: Plan, view: View) -> Plan:
        """Return a plan with what its step is predicted to take on `view`, which may know more than when it was made;
        as it is where that takes long to say, or peers that it has talk cannot."""
        if not is_soon_predicted(self._workload, plan):
            return plan
        cost = predict(self._at_present_size(view), self._workload, plan).cost
        return plan.model_copy(update={"cost": as_cost(cost)}) if math.isfinite(cost.total) else plan

    def seconds(self, plan: Plan, view: View) -> float:
        """Return the predicted seconds of a plan's step on `view`; infinite where peers that it has talk cannot, or
        that takes long to say."""
        if not is_soon_predicted(self._workload, plan):
            return math.inf
        return predict(self._at_present_size(view), self._workload, plan).cost.total

    def _check_forced(self, plan: Plan) -> None:
        check_forced(plan, self.settings.training.micro_batches, self._workload.demand.layers)

    def _at_present_size(self, view: View) -> View:
        """Return the view with layers' seconds for micro-batches of the present size: nodes have measured those of the
        size with which the job began."""
        times = self.settings.training.micro_batch / self._job.training.micro_batch
        if times == 1.0:
            return view
        timed = ((node, node.layer_seconds.times(times) if node.layer_seconds else None) for node in view.nodes)
        nodes = tuple(node.model_copy(update={"layer_seconds": seconds}) for node, seconds in timed)
        return view.model_copy(update={"nodes": nodes})

    def _place(self, plan: Plan, view: View, in_force: Plan | None) -> Plan:
        """Return the forced plan with its placeholders replaced by peers: a peer that serves one stays, others as they
        came."""
        known = set(view.ids)
        named = {name for name in plan.peers if name in known}
        before = dict(zip(plan.peers, in_force.peers if in_force is not None else (), strict=False))
        stay = {name: peer for name, peer in before.items() if name not in named and peer in known - named}
        free = [peer for peer in view.ids if peer not in named and peer not in stay.values()]
        placeholders = [name for name in plan.peers if name not in named and name not in stay]
        if len(placeholders) > len(free):
            missing = len(placeholders) - len(free)
            raise NotEnoughNodes(f"waiting for {missing} more nodes: the forced plan needs {len(plan.peers)}", missing)
        names = stay | dict(zip(placeholders, free, strict=False))
        planning = self.settings.plan
        changes = {"schedule": "1f1b" if planning.schedule == "auto" else planning.schedule, "wire": planning.wire}
        written = plan.model_fields_set | ({"schedule"} if plan.pacing is not None else set())
        changes = {key: value for key, value in changes.items() if key not in written}
        placed = plan.renamed(names).model_copy(
            update={"idle": tuple(free[len(placeholders) :]), "reason": "forced by --plan", **changes}
        )
        cost = predict(view, self._workload, placed).cost
        self._check_memory(placed, view)
        if not math.isfinite(cost.total):
            raise UnmeasuredLinks(sorted(pair for pair in self._pairs(placed) if _is_shut(view, *pair)))
        return placed.model_copy(update={"cost": as_cost(cost)})

    def _pairs(self, plan: Plan) -> Iterator[tuple[str, str]]:
        for pair in pairs_of(plan, tied=self.is_tied):
            one, other = sorted(pair)
            yield one, other

    def _check_memory(self, plan: Plan, view: View) -> None:
        """Check that peers have memory for what a forced plan with a pace, parts or trees of its own takes.

        Raises:
            UserError: one has not.
        """
        if plan.pacing is None and plan.parts is None and plan.trees is None:
            return
        offered = {node.id: node.memory_bytes for node in view.nodes}
        for peer, needed in memory_needed(plan, self._workload.demand, apart_of(view.nodes)).items():
            memory = offered[peer]
            if memory is not None and needed > memory:
                kept = most_in_flight(actions_of(plan, peer))
                less = "lower pacing.in_flight and kept" if plan.pacing else "have it sum less by parts and trees"
                raise UserError(
                    f"--plan: {short(peer)} would keep {kept} micro-batches in flight, which takes with what it sums "
                    f"{bytes_in_words(needed)}, and offers {bytes_in_words(memory)}: {less}"
                )


def _is_shut(view: View, one: str, other: str) -> bool:
    """Whether one of two nodes cannot send to the other, as far as it was tried."""
    here, there = view.ids.index(one), view.ids.index(other)
    return bool(view.bandwidth_gbps[here, there] == 0 or view.bandwidth_gbps[there, here] == 0)
