"""One reduction of a simulated step, bucket by bucket, as `node/dtfm_node/engine` runs it.

A holder begins a bucket when it may, as when its gradient is final, in order, and not more than some at a time. It
adds to its own part what the holders below it in the part's tree send, and sends the sum on; the part's owner, who has
all, gives the total to all down the same tree. Without trees, all send to the owner directly.
"""

from collections.abc import Callable, Sequence
from functools import partial

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.simulator.simulated_network import SimulatedMessage, SimulatedNetwork
from dtfm_coordinator.allocator.simulator.simulated_timeline import BucketPart, TransferKind
from dtfm_protocol.plan.reductions import Reduction
from dtfm_protocol.wire.codec_sizes import BYTES_A_VALUE


class SimulatedReduction:
    """Sum of the same gradients by all who hold them; peers by their rows in the links."""

    def __init__(
        self, one: Reduction, buckets: Sequence[float], under_way: int, links: Links, network: SimulatedNetwork
    ) -> None:
        """Begin with nothing that is final.

        Args:
            buckets: bytes of each bucket, as coded for the wire.
            under_way: buckets that a holder reduces at a time.
        """
        self._one, self._buckets, self._under_way, self._network = one, tuple(buckets), under_way, network
        self.due = one.timing.due
        """What waits for it."""
        self._kind: TransferKind = "tied all-reduce" if one.is_shared else "all-reduce"
        self._rows = [links.index[peer] for peer in one.holders]
        self._place = {row: place for place, row in enumerate(self._rows)}
        self._owners = one.owners if sum(buckets) > 0 else ()
        """Places of those that sum a part; of nothing there are no parts."""
        self._between = BYTES_A_VALUE["fp32"] / BYTES_A_VALUE[one.codec]
        count = range(len(self._rows))
        self._sizes = [one.amounts(size) for size in buckets]
        """Bytes of each bucket's parts."""
        self._children = {index: [one.children(index, place) for place in count] for index in self._owners}
        """Whose sums each holder adds to its own of a part, by place."""
        self._missing = {
            (bucket, index, place): 1 + len(self._children[index][place])
            for bucket in range(len(self._buckets))
            for index in self._owners
            for place in count
        }
        """For each bucket, part and holder, how many of its own and its children's sums are not there yet."""
        self._final, self._begun, self._done = ([0 for _ in count] for _ in range(3))
        """Number of buckets of each holder that are final, that it has begun, and of which it has all totals."""
        self._totals = [[0 for _ in count] for _ in self._buckets]
        self.begun: dict[tuple[str, TransferKind, int], float] = {}
        """Seconds when each holder began each bucket."""
        self.held: dict[int, float] = {}
        """Seconds when each holder had all totals, by its row."""

    def final(self, now: float, row: int, buckets: int) -> None:
        """Take up, for one holder, the first so many buckets, whose gradients are final now."""
        place = self._place[row]
        self._final[place] = max(self._final[place], buckets)
        self._advance(now, place)

    def _advance(self, now: float, place: int) -> None:
        first = self._begun[place]
        room = self._under_way - (first - self._done[place])
        last = min(self._final[place], first + max(0, room))
        self._begun[place] = last
        for bucket in range(first, last):
            self.begun[self._one.holders[place], self._kind, bucket] = now
            # As the engine does: what waits for nobody else's goes out first, in the order of parts.
            waits = [index for index in self._owners if index == place or self._children[index][place]]
            for index in self._owners:
                if index not in waits:
                    self._take_sum(now, bucket, index, place)
            for index in waits:
                self._take_sum(now, bucket, index, place)
            if not self._owners:
                self._end(now, bucket, place)

    def _take_sum(self, now: float, bucket: int, index: int, place: int) -> None:
        """Let a holder have one more of the sums that it adds up of a part."""
        self._missing[bucket, index, place] -= 1
        if self._missing[bucket, index, place] > 0:
            return
        parent = self._one.parent(index, place)
        if parent == place:
            self._take_total(now, bucket, index, place)
            return
        size = self._sizes[bucket][index] * (self._between if self._children[index][place] else 1.0)
        self._send(now, bucket, index, place, parent, size, self._take_sum)

    def _take_total(self, now: float, bucket: int, index: int, place: int) -> None:
        """Let a holder have the total of a part, and hand it on."""
        for child in self._children[index][place]:
            self._send(now, bucket, index, place, child, self._sizes[bucket][index], self._take_total)
        self._totals[bucket][place] += 1
        if self._totals[bucket][place] == len(self._owners):
            self._end(now, bucket, place)

    def _end(self, now: float, bucket: int, place: int) -> None:
        self._done[place] += 1
        if self._done[place] == len(self._buckets):
            self.held[self._rows[place]] = now
        else:
            self._advance(now, place)

    def _send(
        self, now: float, bucket: int, index: int, place: int, other: int, size: float, take: Callable[..., None]
    ) -> None:
        arrive = partial(take, bucket=bucket, index=index, place=other)
        part = BucketPart(bucket, index, take == self._take_total)
        sender, receiver = self._rows[place], self._rows[other]
        self._network.send(SimulatedMessage(sender, receiver, self._kind, None, size, now, arrive, part))
