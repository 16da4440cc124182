"""Orders of compute at unit speed over free links, as plans without a pace have always had them: what the played step
must give there. Written apart from it, so that it can be held against it."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import Action
from dtfm_protocol.plan.schedule_rules import (
    FORWARD_COST,
    WEIGHT_COST,
    backward_cost,
    limits,
    may_go_ahead,
    may_go_back,
)


@dataclass(slots=True)
class _Peer:
    """A peer in the simulated step: what it has done, and could do next."""

    stage: int
    share: int
    limit: int
    """Micro-batches between forward and backward, at most."""
    most: int
    """Micro-batches whose activations are kept, at most: where weights come apart, until their action."""
    order: list[Action] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)
    weights: deque[int] = field(default_factory=deque)
    forwards_done: int = 0
    in_flight: int = 0
    kept: int = 0
    busy: bool = False


class UnitSpeedSchedule:
    """A greedy run of one training step in which every stage is equally fast and links are free."""

    def __init__(self, plan: Plan) -> None:
        self._routes = plan.routes
        self._gpipe = plan.schedule == "gpipe"
        self._split = plan.schedule == "zero-bubble"
        self._last = len(plan.stages) - 1
        shares = plan.shares()
        self._peers = {
            peer: _Peer(stage, shares[peer], *_limits(plan, stage, shares, peer))
            for stage in range(len(plan.stages))
            for peer in plan.replicas(stage)
        }
        self._events: list[tuple[int, int, str, Action]] = []
        self._started = 0

    def run(self) -> dict[str, tuple[Action, ...]]:
        """Simulate the step to its end; return the order in which each peer started its actions."""
        for index, route in enumerate(self._routes):
            heapq.heappush(self._peers[route[0]].forwards, index)
        for name in self._peers:
            self._start(name, 0)
        total = (3 if self._split else 2) * len(self._routes) * (self._last + 1)
        while self._started < total or self._events:
            if not self._events:
                # Every peer stands at its limit and waits for a forward that another one holds back.
                name = min((n for n, p in self._peers.items() if p.forwards), key=lambda n: self._peers[n].forwards[0])
                self._peers[name].limit += 1
                self._peers[name].most += 1
                self._start(name, 0)
                continue
            now, _, name, action = heapq.heappop(self._events)
            touched = self._finish(name, action)
            for peer in touched:
                self._start(peer, now)
        return {name: tuple(peer.order) for name, peer in self._peers.items()}

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
        heapq.heappush(self._events, (now + self._cost(action), self._started, name, action))

    def _cost(self, action: Action) -> int:
        if action.kind == "forward":
            return FORWARD_COST
        if action.kind == "weight":
            return WEIGHT_COST
        return backward_cost(self._split)

    def _finish(self, name: str, action: Action) -> list[str]:
        """Hand an action's result on; return the peers that may have something to start now."""
        peer, route = self._peers[name], self._routes[action.micro_batch]
        peer.busy = False
        if action.kind == "forward":
            peer.forwards_done += 1
            if peer.stage == self._last:
                heapq.heappush(peer.backwards, action.micro_batch)
                return [name]
            heapq.heappush(self._peers[route[peer.stage + 1]].forwards, action.micro_batch)
            return [name, route[peer.stage + 1]]
        if action.kind == "weight":
            peer.kept -= 1
            return [name]
        peer.in_flight -= 1
        if self._split:
            peer.weights.append(action.micro_batch)
        else:
            peer.kept -= 1
        if peer.stage == 0:
            return [name]
        heapq.heappush(self._peers[route[peer.stage - 1]].backwards, action.micro_batch)
        return [name, route[peer.stage - 1]]


def _limits(plan: Plan, stage: int, shares: dict[str, int], peer: str) -> tuple[int, int]:
    later = [shares[other] for s in range(stage + 1, len(plan.stages)) for other in plan.replicas(s)]
    return limits(shares[peer], min(later, default=0), stage, len(plan.stages), plan.schedule == "zero-bubble")
