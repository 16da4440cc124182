"""The accuracy of a lab: delays, rates and fairness as programs on its hosts find them, beside what was asked for."""

import asyncio
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.probe_program import ECHO_BYTES
from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.child_processes import end_with_parent

PAYLOAD = 1448 / 1500
"""Part of a full packet that TCP with timestamps carries for its user."""
_TRANSFER_SECONDS = 2.0
_ENOUGH_BYTES = 32 << 10
"""Bytes that a transfer has at least, so that there are some packets to count on a slow link."""
_LONGEST_TRANSFER_SECONDS = 60.0
"""Seconds of the longest transfer: what is slower is measured by fewer packets, or not at all."""
_PACKET_BYTES = 28 + ECHO_BYTES
"""Bytes of an echo, as an IP packet."""
_STRAY_SECONDS = 1.0
"""Seconds that an echo may be late on a busy machine; a later one is lost."""


class Unmeasured(UserError):
    """The reason why nothing could be found out between two hosts."""


@dataclass(frozen=True)
class LinkMeasurement:
    """The round trip and the rate that were measured between two hosts."""

    sender: int
    receiver: int
    round_trip: float
    """Seconds there and back."""
    rate: float
    """Bytes a second of payload."""

    def text(self, wiring: Wiring) -> str:
        """Describe the measurement for people, beside what was asked for."""
        trip = wiring.round_trip(self.sender, self.receiver)
        rate = wiring.path_rate(self.sender, self.receiver)
        return (
            f"round trip {self.round_trip * 1e3:.1f} ms of {trip * 1e3:.1f}; {self.rate * 8e-6:.4g} Mbit/s of payload, "
            f"{self.rate / (PAYLOAD * rate):.1%} of what {rate * 8e-6:.4g} Mbit/s can carry"
        )


class Gauge:
    """A gauge of a lab, with a server on each of its hosts."""

    def __init__(self, lab: EmulatedNetwork) -> None:
        self._lab = lab
        self._servers: dict[int, asyncio.subprocess.Process] = {}

    async def round_trip(self, sender: int, receiver: int, count: int = 20) -> float:
        """Measure the median seconds of an echo, of those that come back.

        Raises:
            Unmeasured: no echo comes back.
        """
        wait = _STRAY_SECONDS + 2 * echo_seconds(self._lab.wiring, sender, receiver)
        return await self._ask(sender, receiver, "echo", str(count), str(wait))

    async def rates(self, pairs: Sequence[tuple[int, int]], seconds: float = 2.0) -> list[float]:
        """Measure the bytes a second of one TCP stream for each of `pairs`, all at once.

        Raises:
            Unmeasured: one of the pairs cannot connect, or takes far longer than `seconds`.
        """
        wiring = self._lab.wiring
        asked = (self._ask(*pair, "send", str(seconds), str(wiring.path_rate(*pair))) for pair in pairs)
        return list(await asyncio.gather(*asked))

    async def pair(self, sender: int, receiver: int) -> LinkMeasurement:
        """Measure round trip and rate of one pair alone.

        Raises:
            Unmeasured: too much is lost on the way, or the link is too slow.
        """
        wiring = self._lab.wiring
        if math.isinf(echo_seconds(wiring, sender, receiver)):
            raise Unmeasured("nothing can come back")
        trip = await self.round_trip(sender, receiver)
        seconds = transfer_seconds(wiring.path_rate(sender, receiver), trip)
        (rate,) = await self.rates([(sender, receiver)], seconds)
        if not rate:
            raise Unmeasured(f"hardly anything came through in {seconds:.0f} s")
        return LinkMeasurement(sender, receiver, trip, rate)

    async def close(self) -> None:
        """End the servers."""
        for process in self._servers.values():
            process.kill()
            await process.wait()
        self._servers.clear()

    async def _ask(self, sender: int, receiver: int, what: str, *arguments: str) -> float:
        if receiver not in self._servers:
            server = self._servers[receiver] = await self._start(receiver, "serve")
            assert server.stdout is not None
            await server.stdout.readline()
        process = await self._start(sender, what, self._lab.address(receiver), *arguments)
        try:
            said, why = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise Unmeasured(why.decode(errors="replace").strip().rpartition("\n")[2] or f"code {process.returncode}")
        return float(said)

    async def _start(self, host: int, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._lab.within(host), sys.executable, "-m", "dtfm_lab.emulation.probe_program", *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            preexec_fn=end_with_parent(signal.SIGKILL),
        )  # fmt: skip


def echo_seconds(wiring: Wiring, here: int, there: int) -> float:
    """Return the seconds that an echo takes, its packets' time on the links included; infinite if one has no rate."""
    rates = (wiring.path_rate(here, there), wiring.path_rate(there, here))
    return wiring.round_trip(here, there) + sum(_PACKET_BYTES / rate if rate else math.inf for rate in rates)


def transfer_seconds(rate: float, trip: float) -> float:
    """Return the seconds to send at `rate` bytes a second until the window has opened, and there is enough to count."""
    return min(max(_TRANSFER_SECONDS + 10 * trip, _ENOUGH_BYTES / rate), _LONGEST_TRANSFER_SECONDS)


def pairs_to_try(wiring: Wiring) -> list[tuple[int, int]]:
    """Choose the pairs of the highest and the lowest rate and of the longest delay, among those that talk at all."""
    hosts = range(len(wiring.up))
    pairs = [(i, j) for i in hosts for j in hosts if i != j and wiring.path_rate(i, j) > 0]
    if not pairs:
        return []
    rate = {pair: wiring.path_rate(*pair) for pair in pairs}
    found = [max(pairs, key=rate.__getitem__), min(pairs, key=rate.__getitem__)]
    found.append(max(pairs, key=lambda pair: wiring.round_trip(*pair)))
    return list(dict.fromkeys(found))
