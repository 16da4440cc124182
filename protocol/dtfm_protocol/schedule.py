"""Pipeline schedules as data: the order in which each peer computes its micro-batches' forwards and backwards.

Sending and receiving are not actions: the executor posts every receive ahead and sends off the compute thread, so the
order of compute is all that a schedule decides. The orders are taken from a list-scheduled run of the whole step at
unit speed, so they cannot deadlock on any routes: that run is itself a valid execution of them.
"""

import heapq
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from dtfm_protocol.plan import Plan

FORWARD_COST, BACKWARD_COST = 1, 2
"""Relative durations; a backward computes two products for every one of the forward."""


@dataclass(frozen=True, slots=True)
class Action:
    """One piece of compute: the forward or the backward of one micro-batch through the peer's stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def actions_of(plan: Plan, peer: str) -> tuple[Action, ...]:
    """What `peer` computes in one step under `plan`, in order."""
    return orders(plan).get(peer, ())


@lru_cache(maxsize=32)
def orders(plan: Plan) -> dict[str, tuple[Action, ...]]:
    """The order of compute of every peer of `plan`.

    "gpipe": all forwards, then all backwards (Huang et al., 2019). "1f1b": a backward as soon as there is one, and
    no more forwards in flight than keep the peers downstream busy (PipeDream-flush, Narayanan et al., 2021).
    """
    return _ListSchedule(plan).run()


@dataclass(slots=True)
class _Peer:
    """What one peer has done and could do next in the simulated step."""

    stage: int
    share: int
    limit: int
    order: list[Action] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    backwards: list[int] = field(default_factory=list)
    forwards_done: int = 0
    in_flight: int = 0
    busy: bool = False


class _ListSchedule:
    """A greedy run of one training step in which every stage is equally fast and links are free."""

    def __init__(self, plan: Plan) -> None:
        self._routes = plan.routes
        self._gpipe = plan.schedule == "gpipe"
        self._last = len(plan.stages) - 1
        shares = plan.shares()
        self._peers = {
            peer: _Peer(stage, shares[peer], _in_flight_limit(plan, stage, shares, peer))
            for stage in range(len(plan.stages))
            for peer in plan.replicas(stage)
        }
        self._events: list[tuple[int, int, str, Action]] = []
        self._started = 0

    def run(self) -> dict[str, tuple[Action, ...]]:
        """Simulate to the end; the order in which each peer started its actions."""
        for index, route in enumerate(self._routes):
            heapq.heappush(self._peers[route[0]].forwards, index)
        for name in self._peers:
            self._start(name, 0)
        while self._started < 2 * len(self._routes) * (self._last + 1) or self._events:
            if not self._events:
                # Every peer stands at its limit and waits for a forward that another one holds back.
                name = min((n for n, p in self._peers.items() if p.forwards), key=lambda n: self._peers[n].forwards[0])
                self._peers[name].limit += 1
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
        if peer.backwards and not (self._gpipe and peer.forwards_done < peer.share):
            action = Action("backward", heapq.heappop(peer.backwards))
        elif peer.forwards and (self._gpipe or peer.in_flight < peer.limit):
            action = Action("forward", heapq.heappop(peer.forwards))
            peer.in_flight += 1
        else:
            return
        peer.busy = True
        peer.order.append(action)
        self._started += 1
        duration = FORWARD_COST if action.kind == "forward" else BACKWARD_COST
        heapq.heappush(self._events, (now + duration, self._started, name, action))

    def _finish(self, name: str, action: Action) -> list[str]:
        """Hand the result on; returns the peers that may have something to start now."""
        peer, route = self._peers[name], self._routes[action.micro_batch]
        peer.busy = False
        if action.kind == "forward":
            peer.forwards_done += 1
            if peer.stage == self._last:
                heapq.heappush(peer.backwards, action.micro_batch)
                return [name]
            heapq.heappush(self._peers[route[peer.stage + 1]].forwards, action.micro_batch)
            return [name, route[peer.stage + 1]]
        peer.in_flight -= 1
        if peer.stage == 0:
            return [name]
        heapq.heappush(self._peers[route[peer.stage - 1]].backwards, action.micro_batch)
        return [name, route[peer.stage - 1]]


def _in_flight_limit(plan: Plan, stage: int, shares: dict[str, int], peer: str) -> int:
    """Micro-batches that `peer` may have between forward and backward under 1F1B.

    Equal peers need one for every stage from here to the end. One that feeds several slower-shared successors must be
    so many times further ahead to keep all of them busy.
    """
    later = [shares[other] for s in range(stage + 1, len(plan.stages)) for other in plan.replicas(s)]
    spread = -(-shares[peer] // min(later)) if later else 1
    return 1 + (len(plan.stages) - 1 - stage) * spread
