"""How 64 V100s ran a training step under the authors' two programs, and what that takes by this project's simulator.

What is modelled is what the programs do (github.com/DS3Lab/Decentralized_FM_alpha), not what this project's engine
does: its simulator plays the pipelines' messages and compute, and the rest is added here.

- Scheduled and random placement ("GPipe"): rounds of 64 micro-batches (62 for 40 layers), forwards, a barrier over all
  64 processes, backwards; then gradients, in fp16, reduced to the first replica and broadcast back by NCCL, whose
  reduce and broadcast go around a ring in the order of ranks; a last barrier. Barriers are Gloo's (dissemination,
  Hensgen et al. 1988), where each message waits for its receiver to say that it is ready.
- Megatron: 1F1B over all micro-batches, in which sending and receiving block: a neighbour's exchange, of an activation
  one way and a gradient the other, begins when both have stopped computing, and both wait for it. Then a ring
  all-reduce of fp16 gradients.

Activations are recomputed, so that a backward takes three forwards.
"""

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds
from dtfm_coordinator.allocator.simulator.simulator import simulate
from dtfm_lab.networks.paper_networks import paper_network
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.view.view import GBIT

STAGES = REPLICAS = 8
MESSAGE_BYTES = 2048 * 2048 * 2
LAYER_PARAMETERS = 4 * (2048**2 + 2048) + (2 * 2048 * 8192 + 8192 + 2048) + 4 * 2048
EMBEDDING_PARAMETERS = (28_996 + 2048) * 2048
"""The vocabulary of bert-large-cased and 2048 positions; on the first stage alone, and a classifier's head is small."""
GOODPUT = 0.992
"""Of the line rate: 64 MiB in 541 ms at 1 Gbit/s (the authors' results/network_benchmarks.md, NCCL)."""
NIC_GBPS = {8: 25.0, 4: 10.0, 1: 10.0}
"""By GPUs of a host: p3.16xlarge, p3.8xlarge, p3.2xlarge (AWS's instance table; the last two "up to")."""

Placement = Literal["scheduled", "random", "megatron"]
Matrix = npt.NDArray[np.float64]
Groups = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Machine:
    """What a prediction assumes. Seconds are those of one layer's forward on one micro-batch."""

    layer_seconds: float
    """Where a stage's neighbours in its pipeline are on other hosts."""
    nvlink_layer_seconds: float | None = None
    """Where all are on its own host; None is the same."""
    barriers: bool = True
    nics: bool = True
    """Case 2's devices have their hosts' documented NICs, shared evenly, instead of the table's 1.25 Gbit/s."""
    ring: bool = True
    """Reduce and broadcast go around a ring; else between the first replica and each other one, all at once."""
    embeddings: bool = True
    goodput: float = GOODPUT
    blocking: bool = True
    """Megatron's sends and receives block; else they overlap with compute."""


@dataclass(frozen=True)
class Site:
    """64 devices in the order in which the runs counted them."""

    alpha: Matrix
    """One-way delay, seconds."""
    beta: Matrix
    """Line rate, bytes a second."""
    host: tuple[int, ...]


@cache
def site(case: int, nics: bool) -> Site:
    """The network of a case as the runs had it."""
    view = paper_network(case)
    alpha, beta = view.alpha(), view.beta()
    groups = [node.region for node in view.nodes]
    together = np.array([[one == other for other in groups] for one in groups])
    if case in {4, 5}:
        alpha[together] = 0.010  # the emulation's; the scheduler's table has 5 ms
        np.fill_diagonal(alpha, 0.0)
    if case > 2:
        return Site(alpha, beta, tuple(range(len(groups))))
    hosts = list(dict.fromkeys(groups))
    host = np.array([hosts.index(group) for group in groups])
    if case == 2:
        if nics:
            sizes = together.sum(axis=1)
            share = np.array([NIC_GBPS[int(size)] / size * GBIT for size in sizes])
            beta = np.where(together, beta, np.minimum(share[:, None], share[None, :]))
        # The launch scripts' order: four hosts of one, a host of four, and so on.
        order = [d for h in range(8) for d in (*range(32 + 4 * h, 36 + 4 * h), *range(4 * h, 4 * h + 4))]
        alpha, beta, host = alpha[np.ix_(order, order)], beta[np.ix_(order, order)], host[order]
    return Site(alpha, beta, tuple(host.tolist()))


@cache
def pipelines(placement: Placement) -> Groups:
    """The device of each [pipeline, stage]."""
    in_order = np.arange(STAGES * REPLICAS).reshape(REPLICAS, STAGES)
    if placement == "scheduled":
        return in_order
    if placement == "megatron":
        return in_order.T
    ranks = json.loads((Path(__file__).parent / "random_placement_2022.json").read_text(encoding="utf-8"))["map"]
    return np.argsort(np.array(ranks)).reshape(REPLICAS, STAGES)


def step_seconds(case: int, placement: Placement, layers: int, sequences: int, machine: Machine) -> float:
    """The predicted step of 64 devices.

    Args:
        layers: a multiple of 8.
        sequences: of the whole step, a multiple of 512; with 40 layers 62/64 of them, as a round then holds less.
    """
    place, routes = site(case, machine.nics), pipelines(placement)
    if placement == "megatron":
        ends = [_megatron_seconds(place, tuple(r), layers, sequences // REPLICAS, machine) for r in routes.tolist()]
        return max(ends) + max(_all_reduce_seconds(place, routes[:, k], k, layers, machine) for k in range(STAGES))
    size, rounds = (62 if layers == 40 else 64), sequences // 512
    phases = [_gpipe_phases(place, tuple(route), layers, size, machine) for route in routes.tolist()]
    barrier = barrier_seconds(place.alpha, routes.ravel()) if machine.barriers else 0.0
    each = max(forward for forward, _ in phases) + barrier + max(backward for _, backward in phases)
    reduce = max(_reduce_and_broadcast_seconds(place, routes[:, k], k, layers, machine) for k in range(STAGES))
    return rounds * each + reduce + barrier


def single_pipeline_seconds(delay_ms: float, gbps: float, micro_batches: int, machine: Machine) -> float:
    """The predicted step of eight devices on equal links, three layers each."""
    delays, rates = (delay_ms * 1e-3,) * (STAGES - 1), (gbps * GBIT * machine.goodput,) * (STAGES - 1)
    return sum(_played(delays, rates, (3 * machine.layer_seconds,) * STAGES, micro_batches, "gpipe"))


def _gpipe_phases(
    place: Site, route: tuple[int, ...], layers: int, micro_batches: int, machine: Machine
) -> tuple[float, float]:
    return _played(*_chain(place, route, machine), _forwards(place, route, layers, machine), micro_batches, "gpipe")


def _chain(place: Site, route: tuple[int, ...], machine: Machine) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Delay and bandwidth between neighbours; links are symmetric."""
    delays = tuple(float(place.alpha[pair]) for pair in pairwise(route))
    return delays, tuple(float(place.beta[pair]) * machine.goodput for pair in pairwise(route))


def _forwards(place: Site, route: tuple[int, ...], layers: int, machine: Machine) -> tuple[float, ...]:
    """Seconds of each stage's forward."""
    near, far = machine.nvlink_layer_seconds or machine.layer_seconds, machine.layer_seconds
    hosts = [place.host[device] for device in route]
    around = [{*hosts[max(0, k - 1) : k + 2]} for k in range(STAGES)]
    return tuple(layers / STAGES * (near if len(hosts) == 1 else far) for hosts in around)


@cache
def _played(
    delays: tuple[float, ...],
    rates: tuple[float, ...],
    forwards: tuple[float, ...],
    micro_batches: int,
    schedule: Literal["gpipe", "1f1b"],
) -> tuple[float, float]:
    """One pipeline by the simulator: until the last forward has ended, and from there to the last backward."""
    peers = tuple(f"stage{k}" for k in range(STAGES))
    alpha, beta, free = np.zeros((STAGES, STAGES)), np.full((STAGES, STAGES), np.inf), np.full(STAGES, np.inf)
    for k, (delay, rate) in enumerate(zip(delays, rates, strict=True)):
        alpha[k, k + 1] = alpha[k + 1, k] = delay
        beta[k, k + 1] = beta[k + 1, k] = rate
    plan = Plan(stages=tuple((k, k + 1) for k in range(STAGES)), routes=(peers,) * micro_batches, schedule=schedule)
    seconds = {p: ActionSeconds(f, 3 * f) for p, f in zip(peers, forwards, strict=True)}
    links = Links({peer: k for k, peer in enumerate(peers)}, alpha, beta, free, free)
    played = simulate(plan, links, seconds, (MESSAGE_BYTES, MESSAGE_BYTES), [0.0] * STAGES)
    forward = max(span.end for span in played.compute if span.kind == "forward")
    return forward, played.last_backward - forward


def _megatron_seconds(place: Site, route: tuple[int, ...], layers: int, micro_batches: int, machine: Machine) -> float:
    delays, rates = _chain(place, route, machine)
    forwards = _forwards(place, route, layers, machine)
    if not machine.blocking:
        return sum(_played(delays, rates, forwards, micro_batches, "1f1b"))
    exchange = tuple(delay + MESSAGE_BYTES / rate for delay, rate in zip(delays, rates, strict=True))
    return blocking_1f1b_seconds(forwards, exchange, micro_batches)


@cache
def blocking_1f1b_seconds(forwards: tuple[float, ...], exchange: tuple[float, ...], micro_batches: int) -> float:
    """1F1B without interleaving as Megatron-LM runs it (`forward_backward_pipelining_without_interleaving`).

    Args:
        forwards: seconds of each stage's forward; a backward takes three.
        exchange: seconds of a meeting of stage k and k + 1, whether messages go one way or both.
    """
    last = len(forwards) - 1
    programs = [iter(_program(k, last, micro_batches)) for k in range(last + 1)]
    clock = [0.0] * (last + 1)
    waits: list[int | None] = [None] * (last + 1)
    """The boundary at which each stage waits for its neighbour; boundary k is between stages k and k + 1."""
    ready = list(range(last + 1))
    while ready:
        stage = ready.pop()
        for action in programs[stage]:
            if isinstance(action, str):
                clock[stage] += forwards[stage] * (1 if action == "forward" else 3)
                continue
            other = action + 1 if action == stage else action
            waits[stage] = action
            if waits[other] == action:
                clock[stage] = clock[other] = max(clock[stage], clock[other]) + exchange[action]
                waits[stage] = waits[other] = None
                ready.append(other)
                continue
            break
    return max(clock)


def _program(stage: int, last: int, micro_batches: int) -> list[str | int]:
    """What a stage does: computes, and meets a neighbour at a boundary."""
    before: list[str | int] = [stage - 1] if stage > 0 else []
    after: list[str | int] = [stage] if stage < last else []
    warm_up = min(last - stage, micro_batches)
    steady = micro_batches - warm_up
    program = [*before, "forward", *after] * warm_up
    if steady:
        program += [*before, *["forward", *after, "backward", *before] * steady]
    return program + [*after, "backward", *before] * warm_up


def barrier_seconds(alpha: Matrix, ranks: Groups) -> float:
    """Gloo's barrier over `ranks`: in step i each waits for rank + 2^i, which sends when it knows of the waiting."""
    count, distance, times = len(ranks), 1, np.zeros(len(ranks))
    here = np.arange(count)
    while distance < count:
        sender, receiver = (here + distance) % count, (here - distance) % count
        asked = times + alpha[ranks[here], ranks[sender]]
        arrived = np.maximum(asked, times[sender]) + alpha[ranks[sender], ranks[here]]
        let_go = np.maximum(times, asked[receiver])
        times, distance = np.maximum(arrived, let_go), 2 * distance
    return float(times.max())


def _gradient_bytes(stage: int, layers: int, machine: Machine) -> float:
    embedding = EMBEDDING_PARAMETERS if stage == 0 and machine.embeddings else 0
    return 2.0 * (layers // STAGES * LAYER_PARAMETERS + embedding)


def _reduce_and_broadcast_seconds(place: Site, group: Groups, stage: int, layers: int, machine: Machine) -> float:
    """By the ring, in pieces that follow each other: its slowest link carries all of the gradients, once each way."""
    beta, size = place.beta * machine.goodput, _gradient_bytes(stage, layers, machine)
    if not machine.ring:
        return float(2 * max(place.alpha[group[0], d] + size / beta[group[0], d] for d in group[1:]))
    to_first, from_first = list(pairwise([*group[1:], group[0]])), list(pairwise(group))
    return float(
        sum(sum(place.alpha[e] for e in way) + size / min(beta[e] for e in way) for way in (to_first, from_first))
    )


def _all_reduce_seconds(place: Site, group: Groups, stage: int, layers: int, machine: Machine) -> float:
    """A ring: 2 (n - 1) steps, in each of which every link carries an n-th."""
    links, count = list(pairwise([*group, group[0]])), len(group)
    piece = _gradient_bytes(stage, layers, machine) / count
    slowest = max(place.alpha[e] + piece / (place.beta[e] * machine.goodput) for e in links)
    return float(2 * (count - 1) * slowest)
