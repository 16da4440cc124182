"""Watch for what makes connections lead nowhere: this machine has slept, or has other addresses than before.

Nobody tells a program of either. What it can see is that the clock on the wall has gone on while its own stood still,
and which addresses there are.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

from dtfm_protocol.process.logs import log
from dtfm_protocol.process.quantities import time_in_words

LOOK_SECONDS = 2.0
SLEPT_SECONDS = 10.0
"""By so much more than its own clock the one on the wall has gone on after a sleep: whoever sets a clock by hand is
taken to have slept, which costs a reconnection."""


class MachineLook(NamedTuple):
    """What one look at the machine tells."""

    wall: float
    """Unix seconds."""
    awake: float
    """Seconds of a clock that stands while the machine sleeps."""
    addresses: frozenset[str]
    """IP addresses of the machine, loopback's left out."""


@dataclass(frozen=True)
class WakeWatch:
    """State of the watch: the last look. Pure: `on(look)` gives the next state, and why to connect anew."""

    last: MachineLook | None = None

    def on(self, look: MachineLook) -> tuple[Self, str]:
        """Return the state after a look, and why connections may lead nowhere now; "": nothing has changed.

        A machine that has no address at all has nothing to connect with: that is said once it has one again.
        """
        last = self.last
        if last is None:
            return type(self)(look), ""
        if not look.addresses and last.addresses:
            return type(self)(look._replace(addresses=last.addresses)), self._slept(last, look)
        why = self._slept(last, look)
        if not why and look.addresses != last.addresses:
            gone = last.addresses - look.addresses
            why = "this machine has other addresses than before" if gone else ""
        return type(self)(look), why

    @staticmethod
    def _slept(last: MachineLook, look: MachineLook) -> str:
        slept = (look.wall - last.wall) - (look.awake - last.awake)
        return f"this machine has slept ({time_in_words(slept)})" if slept >= SLEPT_SECONDS else ""


async def watch_for_wake(
    addresses: Callable[[], tuple[str, ...]],
    anew: Callable[[], Awaitable[None]],
    *,
    wall: Callable[[], float] = time.time,
    awake: Callable[[], float] = time.monotonic,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Have everything connected anew whenever this machine wakes or moves, until cancelled.

    Args:
        addresses: returns the machine's IP addresses now.
        anew: makes the connections anew.
        wall: returns Unix seconds.
        awake: returns the seconds of a clock that stands while the machine sleeps.
        pause: waits for some seconds.
    """
    watch = WakeWatch()
    while True:
        watch, why = watch.on(MachineLook(wall(), awake(), frozenset(addresses())))
        if why:
            log.info("%s: connecting anew", why)
            await anew()
        await pause(LOOK_SECONDS)
