"""The links that a packet meets: its sender's uplink, the pair's own rate, the delay, its receiver's downlink. Pure.

Time is given, never asked for: what is late here was late when it was told. Sizes are bytes on the wire, rates bytes a
second, times seconds.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dtfm_protocol.view.link_matrix import Matrix

P = TypeVar("P")
LEAST_QUEUE_BYTES = 72 << 10
"""Bytes that a queue takes however slow its link is: what Linux sends in one piece."""


@dataclass(frozen=True)
class LinkLimits:
    """The delays, rates and losses of all links between N hosts. Row sends to column."""

    delay: Matrix
    """One-way seconds, shape (N, N)."""
    rate: Matrix
    """Bytes a second, shape (N, N); 0 is a pair that cannot talk."""
    up: Sequence[float]
    """Bytes a second from each host to all others together; infinite where it is not limited."""
    down: Sequence[float]
    """Bytes a second to each host from all others together; infinite where it is not limited."""
    loss: float = 0.0
    """Share of packets that vanish, 0 to 1."""
    queue_seconds: float = 0.2
    """Seconds of a link's rate that wait for it before more is dropped."""


@dataclass
class Count:
    """The bytes and packets that one ordered pair has carried, and the packets that were dropped."""

    bytes: int = 0
    packets: int = 0
    dropped: int = 0


class EmulatedLinks(Generic[P]):
    """The links between N hosts, and the packets on them."""

    def __init__(self, links: LinkLimits, seed: int = 0) -> None:
        self._links = links
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._arrived: list[tuple[int, P, float]] = []
        hosts = range(len(links.up))
        self._up: list[_Line[P]] = [_Line(self._at) for _ in hosts]
        self._down: list[_Line[P]] = [_Line(self._at) for _ in hosts]
        self._limit()
        self._last: dict[tuple[int, int], float] = {}
        """Time at which the newest packet of each pair comes out of its delay: a shorter delay overtakes nobody."""
        self._in: dict[tuple[int, int], float] = {}
        """Time at which that packet is through a limited downlink: nor does a higher rate overtake anybody."""
        self.counts: dict[tuple[int, int], Count] = {}

    def change(self, links: LinkLimits, now: float) -> None:
        """Replace the links from now on, also for what waits; what is on the way keeps its delay."""
        self._pass(now)
        self._links = links
        self._limit()
        for line in (*self._up, *self._down):
            line.go_on(now)

    def _limit(self) -> None:
        """Tell all lines what they, and the pairs that share them, carry."""
        links = self._links
        for host, (up, down) in enumerate(zip(links.up, links.down, strict=True)):
            self._up[host].limit(up, [float(rate) for rate in links.rate[host]])
            self._down[host].limit(down, [math.inf] * len(links.up))

    def send(self, sender: int, receiver: int, packet: P, size: int, now: float) -> None:
        """Take a packet over; it is dropped where its queue is full, by chance, or where the pair cannot talk."""
        self._pass(now)
        count = self.counts.setdefault((sender, receiver), Count())
        links = self._links
        rate, up = float(links.rate[sender, receiver]), links.up[sender]
        lost = links.loss > 0 and self._random.random() < links.loss
        room = max(LEAST_QUEUE_BYTES, links.queue_seconds * min(rate, up)) if min(rate, up) > 0 else -1.0

        def left(packet: P, at: float) -> None:
            out = max(at + float(self._links.delay[sender, receiver]), self._last.get((sender, receiver), 0.0))
            self._last[sender, receiver] = out
            self._at(out, lambda at: self._come(sender, receiver, packet, size, at))

        if lost or not self._up[sender].offer(_Item(receiver, packet, size, count, now, left), room, now):
            count.dropped += 1

    def due(self, now: float) -> list[tuple[int, P, float]]:
        """Return what has arrived until `now`: receiver, packet, and when it was due."""
        self._pass(now)
        arrived, self._arrived = self._arrived, []
        return arrived

    @property
    def next_time(self) -> float:
        """Time at which something happens next; infinite where nothing is on the way."""
        if self._arrived:
            return self._arrived[0][2]
        return self._events[0][0] if self._events else math.inf

    def _pass(self, now: float) -> None:
        """Let everything happen that is due until `now`, each at its own time."""
        while self._events and self._events[0][0] <= now:
            at, _, happen = heapq.heappop(self._events)
            happen(at)

    def _come(self, sender: int, receiver: int, packet: P, size: int, now: float) -> None:
        """Take a packet that is through its delay to its receiver's downlink."""
        count, down = self.counts[sender, receiver], self._links.down[receiver]

        def arrive(at: float) -> None:
            count.bytes += size
            count.packets += 1
            self._arrived.append((receiver, packet, at))

        if math.isinf(down) and self._in.get((sender, receiver), 0.0) <= now:
            arrive(now)
            return

        def left(packet: P, at: float) -> None:
            out = self._in[sender, receiver] = max(at, self._in.get((sender, receiver), 0.0))
            self._at(out, arrive)

        room = max(LEAST_QUEUE_BYTES, self._links.queue_seconds * down) if down > 0 else -1.0
        if not self._down[receiver].offer(_Item(sender, packet, size, count, now, left), room, now):
            count.dropped += 1

    def _at(self, time: float, happen: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, happen))


@dataclass(slots=True)
class _Item(Generic[P]):
    """A packet that waits for a line, with what it is to be carried by."""

    other: int
    """The host at the other end, by which the line's capacity is shared."""
    packet: P
    size: int
    count: Count
    """The count of the packet's pair."""
    came: float
    left: Callable[[P, float], None]


class _Queue(Generic[P]):
    """The packets of one pair that wait for a line."""

    __slots__ = ("bytes", "finish", "free", "items", "last")

    def __init__(self) -> None:
        self.items: deque[_Item[P]] = deque()
        self.bytes = 0
        self.free = 0.0
        """Time at which the pair has carried all that it was given."""
        self.last = 0
        """Bytes of the newest packet that it was given."""
        self.finish = 0.0
        """Virtual time at which it has had its share of the line."""


class _Line(Generic[P]):
    """A host's way out, or in: start-time fair queueing over the hosts at the other end, each with a rate of its own.

    (Goyal, Vin and Cheng, "Start-time fair queueing", IEEE/ACM ToN 1997.)
    """

    def __init__(self, at: Callable[[float, Callable[[float], None]], None]) -> None:
        self._at = at
        self._queues: dict[int, _Queue[P]] = {}
        self._waiting: dict[int, _Queue[P]] = {}
        self._rate = math.inf
        self._rates: Sequence[float] = ()
        self._free = 0.0
        self._last = 0
        self._virtual = 0.0
        self._wake = math.inf

    def limit(self, rate: float, rates: Sequence[float]) -> None:
        """Set the bytes a second that the line carries in all from now on, and for each host at the other end."""
        self._rate, self._rates = rate, rates

    def go_on(self, now: float) -> None:
        """Serve what waits at other rates: what was begun does not hold up the rest for longer than it would take."""
        if self._rate > 0:
            self._free = min(self._free, now + self._last / self._rate)
        for other, queue in self._queues.items():
            rate = min(self._rate, self._rates[other])
            if rate > 0:
                queue.free = min(queue.free, now + queue.last / rate)
                continue
            for item in queue.items:
                item.count.dropped += 1
            queue.items.clear()
            queue.bytes = 0
            self._waiting.pop(other, None)
        self._serve(now)

    def offer(self, item: _Item[P], room: float, now: float) -> bool:
        """Queue a packet; return whether there was room."""
        queue = self._queues.get(item.other)
        if queue is None:
            queue = self._queues[item.other] = _Queue()
        if queue.bytes + item.size > room:
            return False
        if not queue.items:
            queue.finish = max(queue.finish, self._virtual)
            self._waiting[item.other] = queue
        queue.items.append(item)
        queue.bytes += item.size
        self._serve(now)
        return True

    def _serve(self, now: float) -> None:
        """Start what can start, and come back for the rest."""
        waiting = self._waiting
        while waiting and self._free <= now:
            ready = [other for other, queue in waiting.items() if queue.free <= now]
            if not ready:
                break
            other = ready[0] if len(ready) == 1 else min(ready, key=lambda one: waiting[one].finish)
            queue = waiting[other]
            item = queue.items.popleft()
            queue.bytes -= item.size
            # Who could not use its share, for its pair is slower, has no claim to it later.
            self._virtual = max(self._virtual, queue.finish)
            queue.finish = self._virtual + item.size
            if not queue.items:
                del waiting[other]
            self._free = now + item.size / self._rate
            # Its pair has been at it since it could, though the line was at another's packet until now.
            own = item.size / self._rates[other]
            self._last = queue.last = item.size
            queue.free = max(queue.free, item.came, now - own) + own
            item.left(item.packet, max(self._free, queue.free))
        if waiting:
            wake = max(self._free, min(queue.free for queue in waiting.values()))
            if not now < self._wake <= wake:
                self._wake = wake
                self._at(wake, self._woken)

    def _woken(self, at: float) -> None:
        if at == self._wake:
            self._wake = math.inf
            self._serve(at)
