"""Findings about a simulated step, by peer, stage and link: from plan, view and timeline to plain values."""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, product

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.model_demand import apart_of, boundary_bytes, memory_needed
from dtfm_coordinator.allocator.simulator.peer_time import PeerTime, peer_times
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.simulator.simulated_timeline import REDUCTIONS, SimulatedSpan, Simulation, Transfer
from dtfm_coordinator.allocator.workload import Workload
from dtfm_coordinator.tools.explain.critical_path import Bottleneck, Part, bottleneck, critical_path
from dtfm_coordinator.tools.formatting import link_named
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import GBIT, View
from dtfm_protocol.wire.stream import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFindings:
    """Findings about one peer: what it does during a step, in seconds that add up to the step; memory in bytes."""

    peer: str
    stage: int
    micro_batches: int
    compute: float
    """Seconds of forwards and backwards, and of weights' gradients where they are an action of their own."""
    bubble: float
    """Seconds of waiting before its last action for input that a neighbour has not computed yet."""
    transfer: float
    """Seconds of waiting before its last action for input that is on its way, behind other messages of its link
    included."""
    reduction: float
    """Seconds from its last action to the commit: the all-reduce, the other stages' end, the votes."""
    optimizer: float
    rest: float
    """Seconds from its update's end to the step's."""
    memory_needed: float
    memory_there: float | None
    """Bytes of memory that the peer has; None where the view does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryFindings:
    """Findings about the boundary between a stage and the next one."""

    wire: Wire
    """Codecs in which micro-batches cross it."""
    ahead_bytes: int
    """Bytes of one micro-batch's activations."""
    back_bytes: int
    """Bytes of their gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFindings:
    """Findings about one stage."""

    number: int
    """Number of the stage, from 0."""
    layers: tuple[int, int]
    """Decoder layers of the stage, `[first, end)`."""
    recomputes: bool
    peers: tuple[PeerFindings, ...]
    all_reduce: float
    """Seconds from the stage's last action until all its peers hold the reduced gradients, the tied ones included."""
    slowest_link: Transfer | None
    """Message of the all-reduce, the tied one included, that was longest on its way, without what it waited behind
    earlier ones of its link; None where there is none."""
    onward: BoundaryFindings | None
    """Boundary to the next stage; None: it is the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFindings:
    """Findings about one ordered link: what it carries in a step."""

    sender: str
    receiver: str
    kinds: tuple[str, ...]
    bytes: float
    busy: float
    """Seconds during which the link carries bytes."""
    gbps: float
    """Gbit/s that the link carries when no other is in use."""
    latency_ms: float
    way: Way = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFindings:
    """Findings about a whole step: where its time goes."""

    cost: PredictedSeconds
    planned: float | None
    """Total in seconds that the plan itself states, where it is of the same kind; else None."""
    stages: tuple[StageFindings, ...]
    links: tuple[LinkFindings, ...]
    """Links that carry something, the busiest first."""
    path: tuple[Part, ...]
    bottleneck: Bottleneck
    idle: tuple[str, ...]
    """Peers of the view to which the plan gives no work."""


def check(plan: Plan, work: Workload) -> None:
    """Check that a plan is one for this job.

    Raises:
        UserError: its layers or its micro-batches are not the job's.
    """
    if plan.layers != work.demand.layers:
        raise UserError(
            f"the plan's stages cover {plan.layers} layers and the job's model has {work.demand.layers}: "
            "explain the plan with the job that it was made for"
        )
    if len(plan.routes) != work.micro_batches:
        raise UserError(
            f"the plan has {len(plan.routes)} routes and a step of the job has {work.micro_batches} micro-batches: "
            "explain the plan with the job that it was made for"
        )


def step_findings(plan: Plan, view: View, work: Workload, played: Simulation) -> StepFindings:
    """Return the findings about a simulated step.

    Args:
        played: timeline of a step of `plan` on `view`, exactly simulated.

    Raises:
        UserError: the step never ends, because a pair that must talk cannot.
    """
    links = Links.of(view)
    if not math.isfinite(played.cost.total):
        where = _cut_off(plan, links, work.demand.trained_tied_parameters > 0)
        raise UserError(f"no step of this plan ever ends on this view: {where} has 0 Gbit/s; plan anew on this view")
    path = critical_path(plan, links, played)
    return StepFindings(
        cost=played.cost,
        planned=plan.cost.total if plan.cost is not None and plan.cost.kind == "makespan" else None,
        stages=_stages(plan, view, work, played),
        links=_links(view, links, played),
        path=path,
        bottleneck=bottleneck(path),
        idle=tuple(peer for peer in view.ids if plan.stage_of(peer) is None),
    )


def _cut_off(plan: Plan, links: Links, tied: bool) -> str:
    """Return the first link that the plan needs and that carries nothing, in words; `tied`: first and last stage share
    a matrix."""
    arbiter = plan.peers[0]
    needed: list[tuple[str, ...]] = [(peer, other) for route in plan.pipelines for peer, other in pairwise(route)]
    needed += [pair[::-1] for pair in needed]
    needed += [pair for stage in range(len(plan.stages)) for pair in product(plan.replicas(stage), repeat=2)]
    needed += [pair for peer in plan.peers for pair in ((peer, arbiter), (arbiter, peer))]
    if tied:
        needed += product(plan.replicas(0) + plan.replicas(len(plan.stages) - 1), repeat=2)
    for sender, receiver in needed:
        if sender != receiver and links.beta[links.index[sender], links.index[receiver]] == 0:
            return link_named(sender, receiver)
    return "a link"


def _stages(plan: Plan, view: View, work: Workload, played: Simulation) -> tuple[StageFindings, ...]:
    spans: dict[str, list[SimulatedSpan]] = defaultdict(list)
    for span in played.compute:
        spans[span.peer].append(span)
    times = peer_times(played)
    reductions: dict[str, list[Transfer]] = defaultdict(list)
    for transfer in played.transfers:
        if transfer.kind in REDUCTIONS:
            reductions[transfer.receiver].append(transfer)
    needed = memory_needed(plan, work.demand, apart_of(view.nodes))
    memory = {node.id: node.memory_bytes for node in view.nodes}
    onward = [
        BoundaryFindings(wire=wire, ahead_bytes=ahead, back_bytes=back)
        for wire, (ahead, back) in zip(plan.wires, boundary_bytes(plan, work.demand), strict=True)
    ]
    found = []
    for number, layers in enumerate(plan.stages):
        group = plan.replicas(number)
        peers = tuple(
            _peer(
                peer,
                number,
                sum(span.kind == "forward" for span in spans[peer]),
                times[peer],
                needed[peer],
                memory[peer],
            )
            for peer in group
        )
        last = max(span.end for peer in group for span in spans[peer] if span.kind != "optimizer")
        messages = [transfer for peer in group for transfer in reductions[peer]]
        found.append(
            StageFindings(
                number=number,
                layers=layers,
                recomputes=number in plan.recompute,
                peers=peers,
                all_reduce=max(0.0, max((t.arrival for t in messages), default=last) - last),
                slowest_link=max(messages, key=lambda t: t.arrival - t.start, default=None),
                onward=onward[number] if number < len(onward) else None,
            )
        )
    return tuple(found)


def _peer(
    peer: str, stage: int, micro_batches: int, time: PeerTime, needed: float, there: float | None
) -> PeerFindings:
    return PeerFindings(
        peer=peer,
        stage=stage,
        micro_batches=micro_batches,
        compute=time.compute,
        bubble=time.bubble,
        transfer=time.transfer,
        reduction=time.reduction,
        optimizer=time.optimizer,
        rest=time.rest,
        memory_needed=needed,
        memory_there=there,
    )


def _links(view: View, links: Links, played: Simulation) -> tuple[LinkFindings, ...]:
    carried: dict[tuple[str, str], list[Transfer]] = defaultdict(list)
    for transfer in played.transfers:
        carried[transfer.sender, transfer.receiver].append(transfer)
    found = []
    for (sender, receiver), messages in carried.items():
        pair = links.index[sender], links.index[receiver]
        found.append(
            LinkFindings(
                sender=sender,
                receiver=receiver,
                kinds=tuple(dict.fromkeys(message.kind for message in messages)),
                bytes=math.fsum(message.bytes for message in messages),
                busy=math.fsum(message.end - message.start for message in messages),
                gbps=float(links.beta[pair]) / GBIT,
                latency_ms=float(links.alpha[pair]) * 1e3,
                way=view.way(sender, receiver),
            )
        )
    return tuple(sorted(found, key=lambda link: -link.busy))
