"""Nodes of several devices as child processes: started, watched, started again, ended together."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from dtfm_node.control.display import direct_log
from dtfm_node.devices.devices_screen import screen, words_of
from dtfm_node.devices.restarts import Ended, Restarts
from dtfm_node.limits.machine_readings import FAMILY
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.child_processes import end_with_parent
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log

DRAW_SECONDS = 0.5
STOP_SECONDS = 15.0
"""Seconds that a node has to end once it is not to wait for others any more."""
LINE_BYTES = 1 << 18
"""Bytes of the longest line of a node's log that is shown."""


class DeviceNode:
    """Node of one device."""

    def __init__(self, name: str, folder: Path, command: Sequence[str]) -> None:
        """Nothing runs yet.

        Args:
            name: of the device, for people.
            folder: its state folder.
            command: program and arguments that run it, with its log as JSON lines.
        """
        self.name, self.folder, self._command = name, folder, command
        self._process: asyncio.subprocess.Process | None = None
        self._since = 0.0
        self._said = ""
        """What it said last."""
        self.ended: Ended | None = None
        """What became of it, once it has ended; None: it runs."""

    async def live(self, shown: int) -> int:
        """Run it, and return its exit code; lines of its log from the level `shown` on are logged here."""
        self._since, self.ended, self._said = time.time(), None, ""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            limit=LINE_BYTES,
            env=os.environ | {FAMILY: str(os.getpid())},
            start_new_session=True,  # Ctrl+C goes to the whole terminal group: nodes are asked by this side
            preexec_fn=end_with_parent(signal.SIGTERM),
        )  # fmt: skip
        async for line in _lines(self._process):
            self._relay(line, shown)
        return await self._process.wait()

    def _relay(self, line: str, shown: int) -> None:
        level, said = logging.INFO, line.strip()
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            values = json.loads(said)
            level, said = logging.getLevelNamesMapping()[values["level"].upper()], str(values["message"])
        if said:
            self._said = said
        if said and level >= shown:
            log.log(level, "%s: %s", self.name, said, extra={"fields": {"device": self.name}})

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self) -> None:
        """Have it end now."""
        if self._process is None:
            return
        self.signal(signal.SIGINT)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._process.wait()

    @property
    def words(self) -> str:
        """What it does, or what became of it."""
        if self.ended is not None:
            return f"{self.ended.words}: {self._said}" if self.ended.is_fault and self._said else self.ended.words
        return words_of(self.folder, self._since) or "starts"


class DeviceNodes:
    """Nodes of all devices of one `join`."""

    def __init__(self, nodes: Sequence[DeviceNode], clock: MonotonicClock | None = None) -> None:
        self._nodes, self._clock = nodes, clock or MonotonicClock()
        self._leaving = asyncio.Event()
        self._is_drawn = sys.stderr.isatty() and any(type(one) is logging.StreamHandler for one in log.handlers)

    async def run(self) -> None:
        """Run all until each has finished, left, or given up; one that fails is started again, and the others go on.

        Raises:
            UserError: none of them could take part.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                keeping = [tasks.create_task(self._keep(node)) for node in self._nodes]
                drawing = tasks.create_task(self._draw())
                await asyncio.wait(keeping)
                drawing.cancel()
        finally:
            await asyncio.shield(asyncio.gather(*(node.end() for node in self._nodes)))
        if all(node.ended is not None and node.ended.is_fault for node in self._nodes) and not self._leaving.is_set():
            raise UserError("; ".join(f"{node.name} {node.words}" for node in self._nodes))

    def leave(self) -> bool:
        """Ask all nodes to leave as soon as others can do without them; whether there is anything to wait for."""
        self._leaving.set()
        for node in self._nodes:
            node.signal(signal.SIGINT)
        return True

    async def _keep(self, node: DeviceNode) -> None:
        """Run a node until it is not to be started again."""
        restarts = Restarts()
        while not self._leaving.is_set():
            begun = self._clock.now()
            code = await node.live(logging.WARNING if self._is_drawn else logging.DEBUG)
            restarts, node.ended = restarts.ended(code, self._clock.now() - begun)
            log.log(logging.WARNING if node.ended.is_fault else logging.INFO, "%s %s", node.name, node.words)
            if node.ended.again_after is None:
                return
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(node.ended.again_after):
                    await self._leaving.wait()

    async def _draw(self) -> None:
        """Show a line for each node, where there is a terminal."""
        if not self._is_drawn:
            return
        with Live(console=Console(stderr=True), refresh_per_second=4, transient=False) as live:
            direct_log()
            try:
                while True:
                    live.update(screen({node.name: node.words for node in self._nodes}))
                    await asyncio.sleep(DRAW_SECONDS)
            finally:
                live.update(screen({node.name: node.words for node in self._nodes}))
                live.stop()
                direct_log()


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[str]:
    """Yield the lines that a process writes; one that is too long is left out."""
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line.decode(errors="replace")
