"""Pipeline schedules as data: the order in which each peer computes its share of a step.

Sending and receiving are not actions: the executor posts every receive ahead and sends off the compute thread, so the
order of compute is all that a schedule decides. The orders are taken from a list-scheduled run of the whole step, by
the plan's pace or else at unit speed over free links, so they cannot deadlock on any routes: that run is itself a valid
execution of them.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule_rules import (
    FORWARD_COST,
    WEIGHT_COST,
    backward_cost,
    limits,
    may_go_ahead,
    may_go_back,
)

Kind = Literal["forward", "backward", "weight"]
"""Kind of a piece of compute."""


@dataclass(frozen=True, slots=True)
class Action:
    """A piece of compute on one micro-batch at the peer's stage."""

    kind: Kind
    """The piece. "backward": the gradient of the stage's input, and those of its weights; where a "weight" of the same
    micro-batch follows, it leaves those of the matrices to that."""
    micro_batch: int


def actions_of(plan: Plan, peer: str) -> tuple[Action, ...]:
    """List what `peer` computes in one step under `plan`, in order."""
    return orders(plan).get(peer, ())


@lru_cache(maxsize=32)
def orders(plan: Plan) -> dict[str, tuple[Action, ...]]:
    """Return the order of compute of every peer of `plan`.

    "gpipe": all forwards, then all backwards (Huang et al., 2019). "1f1b": a backward as soon as there is one, and
    no more forwards in flight than keep the peers downstream busy (PipeDream-flush, Narayanan et al., 2021).
    "zero-bubble": as 1F1B, with the backward split, so that the stage before need not wait for the gradients of the
    weights, which fill what would be waiting. After ZB-H1 (Qi et al., 2024, arXiv 2401.10241), and as that within the
    memory of 1F1B's first stage; taken greedily, on K equal stages it idles 2 K - 3 units where that idles K - 1 and
    1F1B 3 (K - 1). Under a plan's `pacing` both keep as many in flight as that says, and the order is that of a run in
    which actions and messages take what it says.
    """
    return _PlayedStep(plan).run()


def most_in_flight(actions: Iterable[Action]) -> int:
    """Return the most micro-batches whose activations a peer keeps at once, from forward to the end of the backward."""
    actions = tuple(actions)
    last = "weight" if any(action.kind == "weight" for action in actions) else "backward"
    now = most = 0
    for action in actions:
        now += (action.kind == "forward") - (action.kind == last)
        most = max(most, now)
    return most


def most_between(actions: Iterable[Action]) -> int:
    """Return the most micro-batches that a peer has between their forward and their backward at once."""
    steps = {"forward": 1, "backward": -1, "weight": 0}
    return max(accumulate(steps[action.kind] for action in actions), default=0)


def most_waiting(actions: Iterable[Action]) -> int:
    """Return the largest number of micro-batches whose backward has begun and whose weights' gradients are still to
    come."""
    kinds = [action.kind for action in actions]
    if "weight" not in kinds:
        return 0
    return max(accumulate((kind == "backward") - (kind == "weight") for kind in kinds))


@dataclass(slots=True)
class _Peer:
    """A peer in the simulated step: what it has done, and could do next."""

    stage: int
    share: int
    limit: int
    """Micro-batches between forward and backward, at most."""
    most: int
    """Micro-batches whose activations are kept, at most: where weights come apart, until their action."""
    costs: dict[Kind, int]
    order: list[Action] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)
    weights: deque[int] = field(default_factory=deque)
    forwards_done: int = 0
    in_flight: int = 0
    kept: int = 0
    busy: bool = False


@dataclass(slots=True)
class _Link:
    """One way of a pair of peers, which carries its messages one after another."""

    transfer: int
    delay: int
    free: int = 0
    """Time from which on it carries nothing."""


class _PlayedStep:
    """A greedy run of one training step, by the plan's pace; without one every stage is equally fast and links are
    free.

    The allocator plays the same run many thousand times a second: its `simulator/compiled_schedule.py` has it as
    compiled loops over arrays, by the same rules, and a test holds the two to each other.
    """

    def __init__(self, plan: Plan) -> None:
        self._routes = plan.routes
        self._gpipe = plan.schedule == "gpipe"
        self._split = plan.schedule == "zero-bubble"
        self._last = len(plan.stages) - 1
        self._peers = _peers(plan)
        self._links: dict[tuple[str, str], _Link] = {}
        if pace := plan.pacing:
            for number, (here, there) in enumerate(plan.pairs):
                self._links[here, there] = _Link(pace.ahead[number], pace.ahead_delay[number])
                self._links[there, here] = _Link(pace.back[number], pace.back_delay[number])
        # Time, number, peer, action, and whether its input arrives there then; else it ends.
        self._events: list[tuple[int, int, str, Action, bool]] = []
        self._foreseen = self._started = 0

    def run(self) -> dict[str, tuple[Action, ...]]:
        """Simulate the step to its end; return the order in which each peer started its actions."""
        now = 0
        for index, route in enumerate(self._routes):
            heapq.heappush(self._peers[route[0]].forwards, index)
        for name in self._peers:
            self._start(name, now)
        total = (3 if self._split else 2) * len(self._routes) * (self._last + 1)
        while self._started < total or self._events:
            if not self._events:
                # Every peer stands at its limit and waits for a forward that another one holds back.
                name = min((n for n, p in self._peers.items() if p.forwards), key=lambda n: self._peers[n].forwards[0])
                self._peers[name].limit += 1
                self._peers[name].most += 1
                self._start(name, now)
                continue
            now, _, name, action, arrives = heapq.heappop(self._events)
            if arrives:
                self._take_input(name, action)
                self._start(name, now)
                continue
            for peer in self._finish(name, action, now):
                self._start(peer, now)
        return {name: tuple(peer.order) for name, peer in self._peers.items()}

    def _foresee(self, time: int, name: str, action: Action, arrives: bool) -> None:
        """Let an event happen at a time; those of one time happen in the order in which they were foreseen."""
        self._foreseen += 1
        heapq.heappush(self._events, (time, self._foreseen, name, action, arrives))

    def _start(self, name: str, now: int) -> None:
        peer = self._peers[name]
        if peer.busy:
            return
        action: Action
        if peer.backwards and may_go_back(self._gpipe, peer.forwards_done, peer.share):
            action = Action("backward", heapq.heappop(peer.backwards))
        elif peer.forwards and may_go_ahead(self._gpipe, peer.in_flight, peer.limit, peer.kept, peer.most):
            action = Action("forward", heapq.heappop(peer.forwards))
            peer.in_flight += 1
            peer.kept += 1
        elif peer.weights:
            action = Action("weight", peer.weights.popleft())
        else:
            return
        peer.busy = True
        peer.order.append(action)
        self._started += 1
        self._foresee(now + peer.costs[action.kind], name, action, arrives=False)

    def _finish(self, name: str, action: Action, now: int) -> list[str]:
        """Hand an action's result on; return the peers that may have something to start now."""
        peer, route = self._peers[name], self._routes[action.micro_batch]
        peer.busy = False
        if action.kind == "forward":
            peer.forwards_done += 1
            if peer.stage == self._last:
                heapq.heappush(peer.backwards, action.micro_batch)
                return [name]
            return [name, *self._sent(name, route[peer.stage + 1], action, now)]
        if action.kind == "weight":
            peer.kept -= 1
            return [name]
        peer.in_flight -= 1
        if self._split:
            peer.weights.append(action.micro_batch)
        else:
            peer.kept -= 1
        return [name, *(self._sent(name, route[peer.stage - 1], action, now) if peer.stage > 0 else ())]

    def _sent(self, name: str, receiver: str, action: Action, now: int) -> list[str]:
        """Send an action's result to the same action of the next peer; return that if it is there at once."""
        arrival = now
        if link := self._links.get((name, receiver)):
            link.free = max(now, link.free) + link.transfer
            arrival = link.free + link.delay
        if arrival > now:
            self._foresee(arrival, receiver, action, arrives=True)
            return []
        self._take_input(receiver, action)
        return [receiver]

    def _take_input(self, name: str, action: Action) -> None:
        peer = self._peers[name]
        heapq.heappush(peer.forwards if action.kind == "forward" else peer.backwards, action.micro_batch)


def _peers(plan: Plan) -> dict[str, _Peer]:
    shares, stages, split = plan.shares(), len(plan.stages), plan.schedule == "zero-bubble"
    if pace := plan.pacing:
        weights = pace.weight or pace.backward  # of which there are no actions then
        columns = zip(plan.peers, pace.forward, pace.backward, weights, pace.in_flight, pace.kept, strict=True)
        stage_of = {peer: stage for stage in range(stages) for peer in plan.replicas(stage)}
        return {
            name: _Peer(
                stage_of[name], shares[name], limit, most, {"forward": forward, "backward": backward, "weight": weight}
            )
            for name, forward, backward, weight, limit, most in columns
        }
    costs: dict[Kind, int] = {"forward": FORWARD_COST, "backward": backward_cost(split), "weight": WEIGHT_COST}
    return {
        name: _Peer(stage, shares[name], *plain_in_flight(plan, stage, shares, name), costs)
        for stage in range(stages)
        for name in plan.replicas(stage)
    }


def plain_in_flight(plan: Plan, stage: int, shares: dict[str, int], peer: str) -> tuple[int, int]:
    """Return how many micro-batches a peer of `stage` may have between forward and backward, and may keep in all,
    where the plan has no pace of its own; `shares` are `plan.shares()`."""
    later = [shares[other] for s in range(stage + 1, len(plan.stages)) for other in plan.replicas(s)]
    return limits(shares[peer], min(later, default=0), stage, len(plan.stages), plan.schedule == "zero-bubble")
