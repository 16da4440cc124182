"""Messages on a network over time: each ordered link carries its own one after another, and links share capacities.

A message's last byte leaves when all of it has been carried, and it arrives the link's delay after that. Where neither
the sender's uplink nor the receiver's downlink is limited a link is alone, and its times follow at once; elsewhere
`FairShare` divides the capacities anew whenever a message begins or ends.
"""

import math
from collections import deque
from collections.abc import Callable
from functools import partial

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.simulator.fair_share import FairShare
from dtfm_coordinator.allocator.simulator.simulated_timeline import BucketPart, Transfer, TransferKind

At = Callable[[float, Callable[[float], None]], None]
"""Function that has another one called with the time, at that time in seconds."""


class SimulatedMessage:
    """Message on its way; times in seconds since the step began."""

    __slots__ = (
        "arrive", "kind", "left", "micro_batch", "part", "ready", "receiver", "sender", "size", "start", "updated",
    )  # fmt: skip

    def __init__(
        self,
        sender: int,
        receiver: int,
        kind: TransferKind,
        micro_batch: int | None,
        size: float,
        ready: float,
        arrive: Callable[[float], None],
        part: BucketPart | None = None,
    ) -> None:
        self.sender, self.receiver, self.kind, self.micro_batch = sender, receiver, kind, micro_batch
        self.size, self.ready, self.arrive, self.part = size, ready, arrive, part
        self.start = math.inf
        self.left = size
        """Bytes not yet carried at `updated`."""
        self.updated = math.inf


class SimulatedNetwork:
    """Links of a view, and all messages that crossed them."""

    def __init__(self, links: Links, at: At) -> None:
        self._at = at
        self._names = list(links.index)
        self._alpha: list[list[float]] = links.alpha.tolist()
        self._beta: list[list[float]] = links.beta.tolist()
        # Only what is limited is a resource: uplinks first, then downlinks.
        self._up, up = _resources(links.uplink.tolist(), 0)
        self._down, down = _resources(links.downlink.tolist(), len(up))
        self._shares = FairShare(up + down)
        self._free: dict[tuple[int, int], float] = {}
        """Time when each link that shares nothing has carried all that it was given."""
        self._queues: dict[tuple[int, int], deque[SimulatedMessage]] = {}
        """Messages that each other link has still to carry; the first is being carried."""
        self._carried: dict[int, SimulatedMessage] = {}
        self._versions: dict[int, int] = {}
        self._count = 0
        self._unsettled = False
        self.transfers: list[Transfer] = []
        """Messages that were carried, in the order in which they ended; those that never end are not among them."""
        self.is_blocked = False
        """Whether a message was handed to a pair that cannot talk."""

    def send(self, message: SimulatedMessage) -> None:
        """Take over a message at its `ready` time."""
        sender, receiver = message.sender, message.receiver
        beta, link = self._beta[sender][receiver], (sender, receiver)
        if beta == 0 or math.isinf(self._alpha[sender][receiver]):
            self.is_blocked = True
        elif self._up[sender] is None and self._down[receiver] is None:
            message.start = max(message.ready, self._free.get(link, 0.0))
            self._free[link] = end = message.start + message.size / beta
            self._end(message, end)
        else:
            queue = self._queues.setdefault(link, deque())
            queue.append(message)
            if len(queue) == 1:
                self._begin(message, message.ready)

    def settle(self, now: float) -> None:
        """Divide the capacities anew if messages began or ended. Call it after all that happens at `now`."""
        if not self._unsettled:
            return
        self._unsettled = False
        for number, before in self._shares.settle().items():
            message = self._carried[number]
            message.left -= before * (now - message.updated)
            message.updated = now
            self._versions[number] += 1
            rate = self._shares.rate[number]
            if rate > 0:
                end = now + max(0.0, message.left) / rate
                self._at(end, partial(self._finish, number=number, version=self._versions[number]))
            else:
                self.is_blocked = True

    def _begin(self, message: SimulatedMessage, now: float) -> None:
        message.start = message.updated = now
        if message.size == 0:
            self._leave(message, now)
            return
        number = self._count = self._count + 1
        self._carried[number], self._versions[number] = message, 0
        resources = (self._up[message.sender], self._down[message.receiver])
        crossed = tuple(resource for resource in resources if resource is not None)
        self._shares.add(number, self._beta[message.sender][message.receiver], crossed)
        self._unsettled = True

    def _finish(self, now: float, number: int, version: int) -> None:
        if self._versions.get(number) != version:
            return  # its rate changed after this end was foreseen
        message = self._carried.pop(number)
        del self._versions[number]
        self._shares.remove(number)
        self._unsettled = True
        self._leave(message, now)

    def _leave(self, message: SimulatedMessage, now: float) -> None:
        queue = self._queues[message.sender, message.receiver]
        queue.popleft()
        self._end(message, now)
        if queue:
            self._begin(queue[0], now)

    def _end(self, message: SimulatedMessage, end: float) -> None:
        sender, receiver = message.sender, message.receiver
        arrival = end + self._alpha[sender][receiver]
        self.transfers.append(
            Transfer(
                self._names[sender],
                self._names[receiver],
                message.kind,
                message.micro_batch,
                message.size,
                message.ready,
                message.start,
                end,
                arrival,
                message.part,
            )
        )
        self._at(arrival, message.arrive)


def _resources(limits: list[float], first: int) -> tuple[list[int | None], list[float]]:
    """Return the number of each peer's limit, None where it has none, counted from `first`; and the limits that there
    are."""
    numbers: list[int | None] = []
    capacities: list[float] = []
    for limit in limits:
        numbers.append(None if math.isinf(limit) else first + len(capacities))
        if not math.isinf(limit):
            capacities.append(limit)
    return numbers, capacities
