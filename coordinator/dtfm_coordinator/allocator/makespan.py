"""The makespan of a training step: a plan played out on measured speeds and links.

Unlike the paper's cost, which sends a pipeline's whole share over a boundary before the next stage begins, this plays
every forward and backward in the order that the runtime's schedule gives, and every message over its link:

- a peer computes one action at a time, in schedule order, as soon as what it needs has arrived;
- sending costs no compute; an ordered link carries its messages one after another, `bytes / beta` seconds each, and a
  message arrives `alpha` seconds after its last byte left; messages also queue at the sender's uplink where the view
  states its limit;
- when all is computed, each stage's replicas reduce their gradients by sharded parameter servers, all stages at once.

Each link and uplink is fed by one peer, in that peer's own order, so no event queue is needed: times follow from the
times before them, in whatever order peers are visited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.paper_cost import data_parallel_seconds, pipeline_seconds
from dtfm_protocol.plan import Plan
from dtfm_protocol.schedule import orders
from dtfm_protocol.view import GBIT, LayerSeconds, View

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Predicted seconds of one training step; infinite where a pair that cannot talk would have to."""

    compute: float
    """The busiest peer's compute."""
    pipeline: float
    """From the step's start to its last backward, less `compute`: what messages and waiting add."""
    data_parallel: float
    """The longest all-reduce."""

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.compute + self.pipeline + self.data_parallel


@dataclass(frozen=True, slots=True)
class Links:
    """The links between peers, as a simulation uses them."""

    index: Mapping[str, int]
    """Each peer's row and column."""
    alpha: Matrix
    """One-way delay, seconds, shape (N, N)."""
    beta: Matrix
    """Bandwidth of a pair alone, bytes a second, shape (N, N)."""
    uplink: Matrix
    """Bytes a second that a peer can send in all, shape (N,); infinite where unknown."""

    @classmethod
    def of(cls, view: View) -> Self:
        """The links of a view; no pair is faster than its sender's uplink or its receiver's downlink."""
        up = np.array([np.inf if node.up_gbps is None else node.up_gbps * GBIT for node in view.nodes])
        down = np.array([np.inf if node.down_gbps is None else node.down_gbps * GBIT for node in view.nodes])
        beta = np.minimum(view.beta(), np.minimum(up[:, None], down[None, :]))
        np.fill_diagonal(beta, np.inf)
        return cls({peer: row for row, peer in enumerate(view.ids)}, view.alpha(), beta, up)

    def pairs(self, senders: Sequence[str], receivers: Sequence[str]) -> tuple[Matrix, Matrix]:
        """Delays and bandwidths between peers, each of shape (senders, receivers)."""
        block = np.ix_([self.index[peer] for peer in senders], [self.index[peer] for peer in receivers])
        return self.alpha[block], self.beta[block]

    def message_seconds(self, senders: Sequence[str], receivers: Sequence[str], size: float) -> Matrix:
        """What one message of `size` bytes takes, shape (senders, receivers)."""
        return pipeline_seconds(*self.pairs(senders, receivers), size)


def makespan(
    plan: Plan,
    links: Links,
    seconds: Mapping[str, LayerSeconds],
    message_bytes: float,
    gradient_bytes: Sequence[float],
) -> StepCost:
    """Play one training step.

    Args:
        plan: uneven stages, shares and replica counts are all welcome.
        links: of a view that names every peer of the plan.
        seconds: each peer's forward and backward of one micro-batch through *its stage*.
        message_bytes: of one micro-batch over one boundary, either way.
        gradient_bytes: of each stage.

    Raises:
        ValueError: the peers' orders of actions wait for each other in a circle.
    """
    end, busy = _play(plan, links, seconds, message_bytes)
    return StepCost(
        compute=busy,
        pipeline=end - busy,
        data_parallel=max(
            all_reduce_seconds(links, plan.replicas(stage), size) for stage, size in enumerate(gradient_bytes)
        ),
    )


def all_reduce_seconds(links: Links, peers: Sequence[str], gradient_bytes: float) -> float:
    """The sharded all-reduce of one stage's gradients: the paper's formula for a group of any size."""
    pairs = data_parallel_seconds(*links.pairs(peers, peers), gradient_bytes, len(peers))
    return float(pairs.sum(axis=1).max())


class _Sender:
    """When a peer's uplink and its links are free again."""

    __slots__ = ("_alpha", "_link_free", "_link_seconds", "_uplink_free", "_uplink_seconds")

    def __init__(self, links: Links, row: int, message_bytes: float) -> None:
        beta = links.beta[row]
        seconds = np.full_like(beta, np.inf)
        np.divide(message_bytes, beta, out=seconds, where=beta > 0)
        self._link_seconds: list[float] = seconds.tolist()
        self._alpha: list[float] = links.alpha[row].tolist()
        self._uplink_seconds = float(message_bytes / links.uplink[row])
        self._link_free: dict[int, float] = {}
        self._uplink_free = 0.0

    def send(self, receiver: int, now: float) -> float:
        """When a message handed over at `now` has arrived."""
        start = max(now, self._uplink_free, self._link_free.get(receiver, 0.0))
        self._uplink_free = start + self._uplink_seconds
        sent = self._link_free[receiver] = start + self._link_seconds[receiver]
        return sent + self._alpha[receiver]


def _play(plan: Plan, links: Links, seconds: Mapping[str, LayerSeconds], message_bytes: float) -> tuple[float, float]:
    """When the last backward ends, and the compute of the busiest peer."""
    last = len(plan.stages) - 1
    stage_of = {peer: stage for stage in range(last + 1) for peer in plan.replicas(stage)}
    actions = orders(plan)
    senders = {peer: _Sender(links, links.index[peer], message_bytes) for peer in stage_of}
    # [micro-batch, stage]: when the input of that forward or backward is there.
    activations = {(index, 0): 0.0 for index in range(len(plan.routes))}
    gradients: dict[tuple[int, int], float] = {}
    clock = dict.fromkeys(stage_of, 0.0)
    busy = dict.fromkeys(stage_of, 0.0)
    done = dict.fromkeys(stage_of, 0)

    ready = list(stage_of)
    while ready:
        peer = ready.pop()
        stage, now, sender = stage_of[peer], clock[peer], senders[peer]
        forward, backward = seconds[peer].forward, seconds[peer].backward
        todo = actions[peer]
        position = done[peer]
        while position < len(todo):
            action = todo[position]
            index = action.micro_batch
            if action.kind == "forward":
                arrived = activations.get((index, stage))
                if arrived is None:
                    break
                now = max(now, arrived) + forward
                if stage == last:
                    gradients[index, stage] = now
                else:
                    receiver = plan.routes[index][stage + 1]
                    activations[index, stage + 1] = sender.send(links.index[receiver], now)
                    ready.append(receiver)
            else:
                arrived = gradients.get((index, stage))
                if arrived is None:
                    break
                now = max(now, arrived) + backward
                if stage > 0:
                    receiver = plan.routes[index][stage - 1]
                    gradients[index, stage - 1] = sender.send(links.index[receiver], now)
                    ready.append(receiver)
            busy[peer] += forward if action.kind == "forward" else backward
            position += 1
        clock[peer], done[peer] = now, position

    stuck = [peer for peer in stage_of if done[peer] < len(actions[peer])]
    if stuck:
        raise ValueError(f"the schedule waits for itself: {stuck[0]} cannot go on after {done[stuck[0]]} actions")
    return max(clock.values()), max(busy.values())
