"""One process of a swarm, which may be started several times."""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dtfm_protocol.process.child_processes import end_with_parent
from tests.harness import warm_start

BIN = Path(sys.executable).parent
"""Where the console scripts are."""
DEADLINE = float(os.environ.get("SWARM_DEADLINE", "180"))
"""Seconds for any one wait of a test: generous, because a machine may have two busy cores. Reaching it is a failure."""
TAIL_LINES = 25


def _cold(script: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return how a program is started from nothing, and what its environment has for that."""
    module = warm_start.SCRIPTS.get(script, "")
    if not module.startswith("tests."):
        return (str(BIN / script),), {}
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return (sys.executable, "-m", module), {"PYTHONPATH": path}


@dataclass
class Daemon:
    """A console script, or a program of the harness, with its arguments, and its process while it runs."""

    name: str
    arguments: tuple[str, ...]
    folder: Path
    """Its state dir; its log and what is to befall it lie beside that."""
    process: "asyncio.subprocess.Process | warm_start.WarmProcess | None" = None
    peer: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    warm: list[psutil.Process] = field(default_factory=list)
    """All its processes that were started warm: their environment does not tell whose they are."""
    within: tuple[str, ...] = ()
    """What it is started by, e.g. `ip netns exec NAME`."""

    @property
    def log(self) -> Path:
        """What all its processes have written, one after the other."""
        return self.folder.with_name(f"{self.name}.log")

    @property
    def fault_file(self) -> Path:
        """Where a fault is written for it."""
        return self.folder.with_name(f"{self.name}.fault")

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        """Of its newest process."""
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        """Start it, or start it again."""
        self.fault_file.write_text("", encoding="ascii")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "DTFM_FAULT_FILE": str(self.fault_file)} | self.environment
        script, *arguments = self.arguments
        # What is loaded into a process before its program, or around it, needs a new process.
        is_cold = bool(self.within) or "LD_PRELOAD" in environment
        if "SWARM_WARM" in os.environ and script in warm_start.SCRIPTS and not is_cold:
            self.process = await warm_start.start(script, tuple(arguments), environment, self.log)
            self.warm.append(psutil.Process(self.process.pid))
            return
        program, more = _cold(script)
        environment |= more
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.within, *program, *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGKILL),
            )  # fmt: skip

    def arm(self, fault: str) -> None:
        """Have something happen at one of the points in its code."""
        temporary = self.fault_file.with_suffix(".new")
        temporary.write_text(fault, encoding="ascii")
        temporary.replace(self.fault_file)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def ended(self, seconds: float) -> int | None:
        """Its exit code, if it ends in time."""
        assert self.process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.process.wait()
        return None

    async def exit_code(self, seconds: float = DEADLINE) -> int:
        """Its exit code, once there is one.

        Raises:
            AssertionError: it does not end in time; with all that it has said.
        """
        code = await self.ended(seconds)
        assert code is not None, f"{self.name} did not end in {seconds:.0f} s; it said:\n{self.said()}"
        return code

    def said(self) -> str:
        """All that it has written, in all its lives."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.said().splitlines()[-TAIL_LINES:])
