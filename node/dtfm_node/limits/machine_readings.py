"""Readings of the machine: battery, use by others, metered network; what cannot be told here is None."""

import asyncio
import contextlib
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import psutil

TOOL_SECONDS = 10.0
"""Interval at which programs are asked: each question starts a process."""
ANSWER_SECONDS = 5.0
"""Limit of such a program's answer."""
BUSY_GPU_PERCENT = 10.0
"""Share of the GPU that another program uses where it counts as taken."""
FAMILY = "DTFM_NODES_OF"
"""Environment variable by which a process that runs a node for each device says its id to them: what they compute is
none of others' use of the machine."""
Ask = Callable[..., Awaitable[str | None]]
"""Function that runs a program with its arguments and returns what it writes; None: it is not there, or fails."""


class MachineReading(NamedTuple):
    """What the machine says of itself at one time; None: it cannot be told here."""

    on_battery: bool | None = None
    idle_seconds: float | None = None
    """Seconds since somebody last touched a key or the mouse."""
    other_gpu_use: bool | None = None
    """Whether another program computes on the GPU."""
    load_of_others: float | None = None
    """Cores that other programs of ordinary priority have used since the last reading."""
    is_metered: bool | None = None


class Readings(Protocol):
    """Source of readings."""

    async def read(self) -> MachineReading:
        """Return what the machine says now."""


@dataclass
class _ToolAnswer:
    """Answer of a program, asked again when it is old."""

    ask: Callable[[], Awaitable[bool | float | None]]
    value: bool | float | None = None
    due: float = 0.0

    async def read(self, now: float) -> bool | float | None:
        if now >= self.due:
            self.value, self.due = await self.ask(), now + TOOL_SECONDS
        return self.value


class SystemReadings:
    """Readings of this system: by psutil, and on Linux by programs that are there or not (`loginctl`, `busctl`,
    `nvidia-smi`)."""

    def __init__(
        self, *, use: bool = True, network: bool = True, gpu: int | None = None, ask: Ask | None = None
    ) -> None:
        """Read nothing yet.

        Args:
            use: whether it is to tell who uses the machine.
            network: whether it is to tell whether the network is metered.
            gpu: number of the CUDA device that computes; None: none does.
            ask: runs a program.
        """
        self._reads_use, self._reads_network, self._gpu, self._ask = use, network, gpu, ask or answer_of
        self._own: tuple[float, tuple[psutil.Process, ...]] = (-math.inf, ())
        """When this process and its children were last looked up, and they: that takes a look at all processes."""
        self._busy: tuple[float, float] | None = None
        """Seconds of a clock, and core seconds that other programs had used by then."""
        self._idle, self._metered = _ToolAnswer(self._idle_since), _ToolAnswer(self._is_metered)
        self._taken = _ToolAnswer(self._gpu_is_taken)

    async def read(self) -> MachineReading:
        """Return what the machine says now."""
        now = time.monotonic()
        reading = MachineReading(on_battery=on_battery())
        if self._reads_network:
            metered = await self._metered.read(now)
            reading = reading._replace(is_metered=None if metered is None else bool(metered))
        if not self._reads_use:
            return reading
        since, taken = await self._idle.read(now), await self._taken.read(now)
        return reading._replace(
            idle_seconds=None if since is None else max(0.0, time.time() - since) if since else 0.0,
            other_gpu_use=None if taken is None else bool(taken),
            load_of_others=self._load(now),
        )

    def _load(self, now: float) -> float | None:
        """Return the cores that others have used since the last time; None the first time."""
        if now >= self._own[0] + TOOL_SECONDS:
            first = own_family()
            self._own = (now, (first, *first.children(recursive=True)))
        before, self._busy = self._busy, (now, core_seconds_of_others(self._own[1]))
        if before is None or now <= before[0]:
            return None
        return max(0.0, (self._busy[1] - before[1]) / (now - before[0]))

    async def _idle_since(self) -> float | None:
        """Return when input came last, in Unix seconds, as the login manager knows it; 0: just now."""
        if not hasattr(os, "getuid"):
            return None
        said = await self._ask("loginctl", "show-user", str(os.getuid()), "-p", "IdleHint", "-p", "IdleSinceHint")
        return None if said is None else idle_since(said)

    async def _is_metered(self) -> bool | None:
        where = "org.freedesktop.NetworkManager"
        said = await self._ask(
            "busctl", "get-property", where, f"/{where.replace('.', '/')}", where, "Metered", "--timeout=3"
        )
        return None if said is None else metered(said)

    async def _gpu_is_taken(self) -> bool | None:
        if self._gpu is None:
            return None
        said = await self._ask("nvidia-smi", "pmon", "-i", str(self._gpu), "-c", "1", "-s", "u")
        return None if said is None else gpu_is_taken(said, os.getpid())


def own_family() -> psutil.Process:
    """Return the process that has started this node, and those of the machine's other devices; else this one."""
    parent = os.getppid()
    return psutil.Process(parent if os.environ.get(FAMILY) == str(parent) else None)


def on_battery() -> bool | None:
    """Whether the machine runs on its battery; one without a battery does not."""
    if not hasattr(psutil, "sensors_battery"):
        return None
    try:
        battery = psutil.sensors_battery()
    except (OSError, ValueError, RuntimeError, AttributeError):  # what the system says of it is odd
        return None
    if battery is None:
        return False
    return None if battery.power_plugged is None else not battery.power_plugged


def core_seconds_of_others(own_processes: Sequence[psutil.Process]) -> float:
    """Return the core seconds that programs of ordinary priority have used, but for `own_processes`, of which the first
    is this one."""
    times, own = psutil.cpu_times(), 0.0
    # Linux counts what programs of low priority compute as `nice`, and what the kernel does for them as `system`.
    is_nice = sys.platform.startswith("linux") and psutil.Process().nice() > 0
    for one in own_processes:
        with contextlib.suppress(psutil.Error):
            used = one.cpu_times()
            own += used.system if is_nice else used.system + used.user
    return float(times.user) + float(times.system) - own


def idle_since(said: str) -> float | None:
    """Return the Unix seconds of the last input from what `loginctl show-user` says; 0: somebody is there now."""
    values = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if values.get("IdleHint") == "no":
        return 0.0
    since = values.get("IdleSinceHint", "")
    return int(since) / 1e6 if values.get("IdleHint") == "yes" and since.isdecimal() and int(since) else None


def metered(said: str) -> bool | None:
    """Return whether the network is metered from NetworkManager's property, "u N": 1 yes, 2 no, 3 and 4 guesses."""
    found = said.split()
    return {"1": True, "3": True, "2": False, "4": False}.get(found[1]) if len(found) == 2 else None


def gpu_is_taken(said: str, me: int) -> bool:
    """Return whether another process than `me` computes on the GPU, from what `nvidia-smi pmon -s u` says."""
    rows = [line.split() for line in said.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return any(
        row[1] != str(me) and row[3].isdecimal() and float(row[3]) >= BUSY_GPU_PERCENT for row in rows if len(row) > 3
    )


async def answer_of(program: str, *arguments: str) -> str | None:
    """Return what a program writes; None where it is not there, fails, or takes long."""
    try:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return said.decode(errors="replace") if process.returncode == 0 else None
