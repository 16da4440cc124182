"""In-memory links and their faults: what is sent arrives late, out of order, not yet, or never.

A link is one direction between two peers. Streams are reliable and ordered: their bytes can be late or held up, and
end when the link is cut. Messages travel each on its own: they can be lost and overtake each other, too. What is to
happen is told by a test; what is left to chance follows from a seed. Time is the event loop's.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable

Deliver = Callable[[], None]
"""A function that hands over at the receiver what has arrived."""


class MemoryLink:
    """A direction of the way between two peers. Without a fault, what is sent has arrived at once."""

    def __init__(self, chance: random.Random) -> None:
        self.delay = 0.0
        """Seconds until what is sent arrives."""
        self.jitter = 0.0
        """Seconds by which a message takes longer than `delay` at most, by chance; a later one may overtake it."""
        self.loss = 0.0
        """Part of the messages that are lost, 0 to 1, by chance."""
        self.dropped = 0
        """Number of messages that were lost."""
        self._chance = chance
        self._to_drop = 0
        self._is_held = False
        self._held: list[Deliver] = []
        self.waiting: set[MemoryChannel] = set()
        """Channels on which something is on its way."""

    @property
    def is_held(self) -> bool:
        """Whether nothing arrives, and nobody is told."""
        return self._is_held

    def drop(self, messages: int = 1) -> None:
        """Lose the next `messages` messages."""
        self._to_drop += messages

    def hold(self) -> None:
        """Hold everything up until `release`: what is sent from now on, and what is on its way in a stream."""
        self._is_held = True

    def release(self, *, backwards: bool = False) -> None:
        """Let what was held up arrive now; messages in the reverse of their order, if `backwards`."""
        self._is_held = False
        held, self._held = self._held, []
        for deliver in reversed(held) if backwards else held:
            deliver()
        for channel in list(self.waiting):
            channel.pump()

    def send(self, deliver: Deliver) -> bool:
        """Send a message, which `deliver` hands over on arrival; return whether it will arrive one day."""
        if self._to_drop > 0 or (self.loss and self._chance.random() < self.loss):
            self._to_drop = max(0, self._to_drop - 1)
            self.dropped += 1
            return False
        late = self.delay + (self.jitter * self._chance.random() if self.jitter else 0.0)
        if self._is_held:
            self._held.append(deliver)
        elif late:
            asyncio.get_running_loop().call_later(late, self._arrive, deliver)
        else:
            deliver()
        return True

    def _arrive(self, deliver: Deliver) -> None:
        if self._is_held:
            self._held.append(deliver)
        else:
            deliver()


class MemoryChannel:
    """A queue of what is on its way on a link and keeps its order, as a stream's bytes do."""

    def __init__(self, link: MemoryLink) -> None:
        self._link = link
        self._due: deque[tuple[float, Deliver]] = deque()

    def send(self, deliver: Deliver) -> None:
        """Queue a delivery: `deliver` is called on arrival, after all that was sent before."""
        if not self._due and not self._link.delay and not self._link.is_held:
            deliver()
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + self._link.delay
        if self._due:
            due = max(due, self._due[-1][0])
        self._due.append((due, deliver))
        self._link.waiting.add(self)
        loop.call_at(due, self.pump)

    def pump(self) -> None:
        """Deliver what is due."""
        # A timer may fire within the clock's resolution before its time; none else comes for what it was set for.
        now = asyncio.get_running_loop().time() + 1e-3
        while self._due and self._due[0][0] <= now and not self._link.is_held:
            self._due.popleft()[1]()
        if not self._due:
            self._link.waiting.discard(self)

    def clear(self) -> None:
        """Lose what is on its way."""
        self._due.clear()
        self._link.waiting.discard(self)
