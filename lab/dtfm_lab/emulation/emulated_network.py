"""A lab: hosts, the forwarding process between them, and its counts."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from dtfm_lab.emulation.hosts import Hosts, address
from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.child_processes import end_with_parent

_ANSWER_SECONDS = 10.0
_LINE_LIMIT = 1 << 24
_BROKEN = "the forwarding process of the emulated network has ended or hangs"


@dataclass(frozen=True)
class Counts:
    """The traffic that a lab has carried so far."""

    bytes: dict[tuple[int, int], int]
    """Bytes of each ordered pair, as IP packets."""
    dropped: dict[tuple[int, int], int]
    """Packets of each ordered pair that were dropped."""
    delivered: int
    """Packets that were delivered."""
    late: float
    """Seconds between when packets were due and when they were delivered, of all together."""
    late_most: float
    """Seconds by which the latest packet was late."""

    @property
    def late_mean(self) -> float:
        """Seconds by which a packet was late in the mean."""
        return self.late / self.delivered if self.delivered else 0.0

    def late_since(self, before: "Counts") -> float:
        """Return the mean seconds by which the packets were late that were delivered after `before`."""
        delivered = self.delivered - before.delivered
        return (self.late - before.late) / delivered if delivered else 0.0


class EmulatedNetwork:
    """A running emulated network. Create it with `running`."""

    def __init__(self, hosts: Hosts, process: asyncio.subprocess.Process, wiring: Wiring) -> None:
        self._hosts, self._process = hosts, process
        self.wiring = wiring
        """The links as they are now."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, wiring: Wiring) -> AsyncIterator["EmulatedNetwork"]:
        """Run a network of as many hosts as `wiring` has, until the block ends.

        Raises:
            UserError: this machine cannot have one.
        """
        with Hosts.made(len(wiring.up)) as hosts:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dtfm_lab.emulation.emulator", *map(str, hosts.devices),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                pass_fds=hosts.devices, start_new_session=True, preexec_fn=end_with_parent(signal.SIGKILL),
                limit=_LINE_LIMIT,
            )  # fmt: skip
            lab = cls(hosts, process, wiring)
            try:
                await lab.change(wiring)
                await lab.counts()  # it is up
                yield lab
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    def within(self, number: int) -> tuple[str, ...]:
        """Return the start of a command line by which a command runs on host `number`."""
        return self._hosts.within(number)

    def name(self, number: int) -> str:
        """Return the name of a host's network namespace."""
        return self._hosts.names[number]

    def address(self, number: int) -> str:
        """Return the IPv4 address of host `number`."""
        return address(number)

    async def change(self, wiring: Wiring) -> None:
        """Replace the links from now on."""
        self.wiring = wiring
        await self._say(wiring.model_dump_json())

    async def counts(self) -> Counts:
        """Ask the forwarding process for what was carried so far."""
        await self._say("")
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                values = json.loads(await self._process.stdout.readline() or b"null")
        except TimeoutError:
            values = None
        if values is None:
            raise UserError(_BROKEN)
        pairs = [(sender, receiver, *rest) for sender, receiver, *rest in values["pairs"]]
        return Counts(
            {(sender, receiver): size for sender, receiver, size, _, _ in pairs},
            {(sender, receiver): dropped for sender, receiver, _, _, dropped in pairs},
            values["delivered"],
            values["late"],
            values["late_most"],
        )

    async def watch(self) -> None:
        """Wait for the end of the forwarding process, which should not come.

        Raises:
            UserError: the process has ended.
        """
        await self._process.wait()
        raise UserError(_BROKEN)

    async def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()
