"""Simulator of one training step, exactly, event by event: compute, messages, all-reduce, commit, optimizer.

The step is played as `node/dtfm_node/engine` runs it:

- a peer computes one action at a time, in the order of the plan's schedule, as soon as its input has arrived; sending
  and receiving cost no compute;
- messages cross the network as `simulated_network` says: in order on each link, uplinks and downlinks shared;
- the replicas of a stage reduce its gradients bucket by bucket, by parts, as soon as a bucket is final
  (`simulated_reduction`). Stages do so at their own times, beside what other stages still send;
- `plan.peers[0]` collects a vote from every peer once it holds the reduced gradients, and answers all with the commit
  (`engine.step_arbiter`); these carry next to no bytes, so they take the links' delays alone; then each peer updates.

No randomness, no clock: the same arguments give the same timeline.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.bucket_cut import BucketsOf, in_one_bucket
from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds
from dtfm_coordinator.allocator.simulator.predicted_seconds import PredictedSeconds
from dtfm_coordinator.allocator.simulator.simulated_network import SimulatedMessage, SimulatedNetwork
from dtfm_coordinator.allocator.simulator.simulated_reduction import SimulatedReduction
from dtfm_coordinator.allocator.simulator.simulated_timeline import SimulatedSpan, Simulation
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import by_priority, reductions
from dtfm_protocol.plan.schedule import Action, orders

SIMULTANEOUS = 1e-12
"""Share of the time within which events count as one when capacities are divided anew: rounding parts them."""


def simulate(
    plan: Plan,
    links: Links,
    seconds: Mapping[str, ActionSeconds],
    message_bytes: tuple[float, float],
    gradient_bytes: Sequence[float],
    optimizer_seconds: Mapping[str, float] | None = None,
    tied_gradient_bytes: float = 0.0,
    boundary_bytes: Sequence[tuple[float, float]] = (),
    buckets: BucketsOf = in_one_bucket,
) -> Simulation:
    """Play one training step, and return its timeline and cost.

    Args:
        plan: any routes, shares and replica counts.
        links: links of a view that names every peer of the plan.
        seconds: seconds that each peer's actions take, by peer id.
        message_bytes: bytes of one micro-batch's message over one boundary, ahead and back.
        gradient_bytes: bytes of the gradients that each stage's replicas reduce among themselves.
        optimizer_seconds: seconds of each peer's update of its stage; 0 where it is not given.
        tied_gradient_bytes: bytes of the gradients that the peers of first and last stage reduce together; without
            effect where there is one stage.
        boundary_bytes: `message_bytes` of each boundary, in order, where they are unlike; empty: they are not.
        buckets: tells the buckets of each reduction and when they are final; one each, at the end of the last action,
            where it is not given.

    The parts of the cost add up to the step's end. Where a pair that cannot talk would have to, the part that waits
    for it is infinite and the parts after it are 0.

    Raises:
        ValueError: the peers' orders of actions wait for each other in a circle.
    """
    sizes = boundary_bytes or [message_bytes] * (len(plan.stages) - 1)
    step = _Step(plan, links, seconds, sizes, gradient_bytes, tied_gradient_bytes, buckets)
    return step.run(optimizer_seconds or {})


class _Events:
    """Queue of what is due, by time; equal times in the order in which they were foreseen."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0

    def at(self, time: float, what: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, what))

    def run(self, settle: Callable[[float], None]) -> None:
        """Let everything happen in order; call `settle` after all that happens at one time."""
        heap = self._heap
        while heap:
            together = heap[0][0] * (1 + SIMULTANEOUS)
            while heap and heap[0][0] <= together:
                now, _, what = heapq.heappop(heap)
                what(now)
            settle(now)


class _Step:
    """Training step under way."""

    def __init__(
        self,
        plan: Plan,
        links: Links,
        seconds: Mapping[str, ActionSeconds],
        boundary_bytes: Sequence[tuple[float, float]],
        gradient_bytes: Sequence[float],
        tied_gradient_bytes: float,
        buckets: BucketsOf,
    ) -> None:
        self._plan, self._links, self._seconds, self._boundary_bytes = plan, links, seconds, boundary_bytes
        self._last = len(plan.stages) - 1
        self._orders = orders(plan)
        self._events = _Events()
        self._network = SimulatedNetwork(links, self._events.at)
        self._stage_of = {peer: stage for stage in range(self._last + 1) for peer in plan.replicas(stage)}
        self._reductions: list[list[tuple[SimulatedReduction, tuple[float, ...]]]] = [[] for _ in plan.stages]
        """Reductions in which the peers of each stage take part, in the order of their priorities, each with the shares
        of the last action after which buckets may begin."""
        for one in by_priority(reductions(plan, tied=tied_gradient_bytes > 0)):
            cut = buckets(one, tied_gradient_bytes if one.is_shared else gradient_bytes[one.stages[0]])
            reduction = SimulatedReduction(one, cut.sizes, cut.under_way, links, self._network)
            for stage, final in zip(one.stages, cut.final, strict=True):
                self._reductions[stage].append((reduction, final))
        # (micro-batch, stage) whose forward's or backward's input is there.
        self._activations = {(index, 0) for index in range(len(plan.routes))}
        self._gradients: set[tuple[int, int]] = set()
        self._next = dict.fromkeys(self._stage_of, 0)
        self._busy = dict.fromkeys(self._stage_of, False)
        self._spans: list[SimulatedSpan] = []

    def run(self, optimizer_seconds: Mapping[str, float]) -> Simulation:
        """Play the step to its end, and return its timeline and cost."""
        for peer in self._stage_of:
            self._start(0.0, peer)
        self._events.run(self._network.settle)
        unfinished = [peer for peer, done in self._next.items() if done < len(self._orders[peer])]
        if unfinished and not self._network.is_blocked:
            done = self._next[unfinished[0]]
            raise ValueError(f"the schedule waits for itself: {unfinished[0]} cannot go on after {done} actions")
        last_backward = math.inf if unfinished else max((span.end for span in self._spans), default=0.0)
        received = self._commits()
        committed = max(received.values())
        updates = [
            SimulatedSpan(peer, "optimizer", None, time, time + optimizer_seconds.get(peer, 0.0))
            for peer, time in received.items()
            if time < math.inf
        ]
        end = max((span.end for span in updates), default=math.inf) if committed < math.inf else math.inf
        busiest = max(sum(self._takes(peer, action) for action in actions) for peer, actions in self._orders.items())
        cost = PredictedSeconds(
            compute=busiest,
            pipeline=last_backward - busiest,
            data_parallel=_after(last_backward, committed),
            optimizer=_after(committed, end),
        )
        return Simulation(
            cost=cost,
            compute=tuple(sorted([*self._spans, *(u for u in updates if u.end > u.start)], key=lambda s: s.start)),
            transfers=tuple(sorted(self._network.transfers, key=lambda transfer: transfer.start)),
            last_backward=last_backward,
            committed=committed,
            begun={key: at for some in self._reductions for one, _ in some for key, at in one.begun.items()},
        )

    def _start(self, now: float, peer: str) -> None:
        """Start the peer's next action if the peer is free and the action's input is there."""
        position, order = self._next[peer], self._orders[peer]
        if self._busy[peer] or position == len(order):
            return
        action = order[position]
        if action.kind != "weight":  # whose backward comes before it in the order
            there = self._activations if action.kind == "forward" else self._gradients
            if (action.micro_batch, self._stage_of[peer]) not in there:
                return
        self._busy[peer] = True
        end = now + self._takes(peer, action)
        self._spans.append(SimulatedSpan(peer, action.kind, action.micro_batch, now, end))
        if position == len(order) - 1:
            self._foresee_buckets(now, end, peer)
        self._events.at(end, partial(self._finish, peer=peer))

    def _foresee_buckets(self, start: float, end: float, peer: str) -> None:
        """Have the peer take up those buckets that are final before its last action, from `start` to `end`, is over."""
        row = self._links.index[peer]
        for reduction, final in self._reductions[self._stage_of[peer]]:
            for number, share in enumerate(final):
                if share < 1.0:
                    ready = partial(reduction.final, row=row, buckets=number + 1)
                    self._events.at(start + share * (end - start), ready)

    def _takes(self, peer: str, action: Action) -> float:
        seconds: float = getattr(self._seconds[peer], action.kind)
        return seconds

    def _finish(self, now: float, peer: str) -> None:
        """Hand on what the peer has computed, and let it go on."""
        action, stage = self._orders[peer][self._next[peer]], self._stage_of[peer]
        self._busy[peer] = False
        self._next[peer] += 1
        index = action.micro_batch
        if action.kind == "forward" and stage == self._last:
            self._gradients.add((index, stage))
        elif action.kind == "forward":
            self._send(now, peer, self._plan.routes[index][stage + 1], index, "activation")
        elif action.kind == "backward" and stage > 0:
            self._send(now, peer, self._plan.routes[index][stage - 1], index, "gradient")
        if self._next[peer] == len(self._orders[peer]):
            for reduction, final in self._reductions[stage]:
                reduction.final(now, self._links.index[peer], len(final))
        else:
            self._start(now, peer)

    def _send(
        self, now: float, sender: str, receiver: str, index: int, kind: Literal["activation", "gradient"]
    ) -> None:
        arrive = partial(self._arrive, receiver=receiver, index=index, kind=kind)
        rows, stage = self._links.index, self._stage_of[sender]
        size = self._boundary_bytes[stage][0] if kind == "activation" else self._boundary_bytes[stage - 1][1]
        self._network.send(SimulatedMessage(rows[sender], rows[receiver], kind, index, size, now, arrive))

    def _arrive(self, now: float, receiver: str, index: int, kind: Literal["activation", "gradient"]) -> None:
        there = self._activations if kind == "activation" else self._gradients
        there.add((index, self._stage_of[receiver]))
        self._start(now, receiver)

    def _commits(self) -> dict[str, float]:
        """Return the seconds when each peer learns of the commit; infinite where it never does."""
        arbiter = self._links.index[self._plan.peers[0]]
        rows = {peer: self._links.index[peer] for peer in self._stage_of}
        due = [[reduction for reduction, _ in each if reduction.due == "vote"] for each in self._reductions]
        held = {
            row: max(reduction.held.get(row, math.inf) for reduction in due[self._stage_of[peer]])
            for peer, row in rows.items()
        }
        decided = max(time + self._delay(row, arbiter) for row, time in held.items())
        return {peer: decided + self._delay(arbiter, row) for peer, row in rows.items()}

    def _delay(self, sender: int, receiver: int) -> float:
        """Return the seconds of a message without bytes; infinite for a pair that cannot talk."""
        if sender == receiver:
            return 0.0
        talk = self._links.beta[sender, receiver] > 0
        return float(self._links.alpha[sender, receiver]) if talk else math.inf


def _after(start: float, end: float) -> float:
    """Return the seconds from `start` to `end`; 0 where `start` never comes."""
    return 0.0 if math.isinf(start) else end - start
