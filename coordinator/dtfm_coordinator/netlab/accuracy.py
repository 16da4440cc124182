"""How true a lab is: delays, rates and fairness as programs on its hosts find them, beside what was asked for."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dtfm_coordinator.netlab.lab import Lab
from dtfm_coordinator.netlab.world import Wiring
from dtfm_protocol.errors import UserError

PAYLOAD = 1448 / 1500
"""Of a full packet, what TCP with timestamps carries for its user."""
_ENOUGH_SECONDS = 2.0


@dataclass(frozen=True)
class Found:
    """What was measured between two hosts."""

    sender: int
    receiver: int
    round_trip: float
    """Seconds."""
    rate: float
    """Bytes a second of payload."""

    def text(self, wiring: Wiring) -> str:
        """Beside what was asked for."""
        trip = wiring.round_trip(self.sender, self.receiver)
        rate = wiring.path_rate(self.sender, self.receiver)
        return (
            f"round trip {self.round_trip * 1e3:.1f} ms of {trip * 1e3:.1f}; {self.rate * 8e-6:.4g} Mbit/s of payload, "
            f"{self.rate / (PAYLOAD * rate):.1%} of what {rate * 8e-6:.4g} Mbit/s can carry"
        )


class Gauge:
    """Measures a lab. It has a server on each host."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._servers: dict[int, asyncio.subprocess.Process] = {}

    async def round_trip(self, sender: int, receiver: int, count: int = 20) -> float:
        """Median seconds of an echo."""
        return await self._ask(sender, receiver, "echo", str(count))

    async def rates(self, pairs: Sequence[tuple[int, int]], seconds: float = 2.0) -> list[float]:
        """Bytes a second of one TCP stream for each of `pairs`, all at once."""
        return list(await asyncio.gather(*(self._ask(*pair, "send", str(seconds)) for pair in pairs)))

    async def pair(self, sender: int, receiver: int) -> Found:
        """One pair alone."""
        trip = await self.round_trip(sender, receiver)
        (rate,) = await self.rates([(sender, receiver)], _ENOUGH_SECONDS + 10 * trip)
        return Found(sender, receiver, trip, rate)

    async def close(self) -> None:
        """End the servers."""
        for process in self._servers.values():
            process.kill()
            await process.wait()
        self._servers.clear()

    async def _ask(self, sender: int, receiver: int, what: str, argument: str) -> float:
        if receiver not in self._servers:
            server = self._servers[receiver] = await self._start(receiver, "serve")
            assert server.stdout is not None
            await server.stdout.readline()
        process = await self._start(sender, what, self._lab.address(receiver), argument)
        said, _ = await process.communicate()
        if process.returncode:
            raise UserError(f"host {sender} cannot reach host {receiver} of the emulated network")
        return float(said)

    async def _start(self, host: int, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._lab.within(host), sys.executable, "-m", "dtfm_coordinator.netlab.gauge", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip


def pairs_to_try(wiring: Wiring) -> list[tuple[int, int]]:
    """The pairs with the highest and the lowest rate, and the one with the longest delay; those that talk at all."""
    hosts = range(len(wiring.up))
    pairs = [(i, j) for i in hosts for j in hosts if i != j and wiring.path_rate(i, j) > 0]
    if not pairs:
        return []
    rate = {pair: wiring.path_rate(*pair) for pair in pairs}
    found = [max(pairs, key=rate.__getitem__), min(pairs, key=rate.__getitem__)]
    found.append(max(pairs, key=lambda pair: wiring.round_trip(*pair)))
    return list(dict.fromkeys(found))
