"""Runtime of the engine: the device, the threads that use it, the way to and from its memory, and the tracer."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from dtfm_node.engine.device import synchronise
from dtfm_node.engine.host_copies import HostCopies
from dtfm_node.engine.tracer import NO_TRACE, Tracer
from dtfm_protocol.process.late_actions import LateActionCount
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.trace_format import Lane

Compute = Callable[..., Awaitable[Any]]
"""Function that runs a function with its arguments on a thread, and returns an awaitable of the result."""


def on_thread(thread: ThreadPoolExecutor) -> Compute:
    """Return a function that runs others on `thread`, one after the other, while the event loop goes on."""

    def run(function: Callable[..., Any], *arguments: Any) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(thread, function, *arguments)

    return run


@dataclass(frozen=True)
class Runtime:
    """Device, threads, host copies and tracer that one engine uses. Create it with `running`."""

    device: torch.device
    compute: Compute
    """Thread of the stage's forwards, backwards and updates."""
    reduce: Compute
    """Thread of the all-reduce's sums, beside compute: it begins while the last backward still runs."""
    host_copies: HostCopies
    tracer: Tracer = NO_TRACE
    compiled: bool = False
    """Whether decoder layers are compiled by `torch.compile`."""
    pace: float | None = None
    """FLOP/s of the slower device that this one is to behave as; None: it runs as fast as it can."""
    share: float = 1.0
    """Part of the time for which the device may be busy with compute, above 0; 1: all of it."""
    late: LateActionCount = field(default_factory=LateActionCount)
    """Count of the actions that have taken longer than that device takes."""
    _rests_until: list[float] = field(default_factory=lambda: [0.0])
    """Time (`time.monotonic()`) until which the device rests after the last action, in a list of one."""
    _busy: list[float] = field(default_factory=lambda: [0.0])
    _at: list[float] = field(default_factory=lambda: [0.0])
    """Time (`time.monotonic()`) when the action began that is being computed, in a list of one; 0: none is."""

    @classmethod
    @contextlib.contextmanager
    def running(
        cls,
        device: torch.device,
        tracer: Tracer = NO_TRACE,
        *,
        compiled: bool = False,
        pace: float | None = None,
        share: float = 1.0,
    ) -> Iterator["Runtime"]:
        """Run threads that end with the block; what they have under way is finished first."""
        # A library that was compiled for speed may have told threads to take the smallest numbers as zero; peers with
        # other libraries would have other bits.
        exact: dict[str, Any] = {"initializer": torch.set_flush_denormal, "initargs": (False,)}
        with ThreadPoolExecutor(1, "compute", **exact) as compute, ThreadPoolExecutor(1, "reduce", **exact) as reduce:
            host_copies = HostCopies(device)
            late = LateActionCount.of_environment() if pace is not None else LateActionCount()
            on = on_thread(compute), on_thread(reduce)
            try:
                yield cls(device, *on, host_copies, tracer, compiled, pace, share, late)
            finally:
                host_copies.close()
                compute.shutdown()  # it counts
                late.write()
                if late.total.actions:
                    log.info("%s", late.total.text)

    def action_seconds(self) -> float:
        """Return the seconds for which the compute thread has been at its present action; 0: it has none."""
        begun = self._at[0]
        return time.monotonic() - begun if begun else 0.0

    def take_busy(self) -> float:
        """Return the seconds of compute since the last call; on an accelerator up to the launch of the last kernel."""
        busy, self._busy[0] = self._busy[0], 0.0
        return busy

    async def run(
        self,
        lane: Lane,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        least: float = 0.0,
        took: Callable[[float], None] | None = None,
        **labels: int,
    ) -> tuple[Any, Any]:
        """Run `function` on the compute thread, and trace it; return its result, and the event that
        `HostCopies.to_host` awaits.

        Args:
            least: seconds that it takes at least.
            took: told on the compute thread of the seconds that it has taken, with those for which the device then has
                to rest. An accelerator has only been asked for its work by then.
        """

        @functools.wraps(function)
        def drawn(*arguments: Any) -> tuple[Any, Any]:
            self._rest()
            self._at[0] = begun = time.monotonic()
            try:
                result = function(*arguments)
                if least:
                    time.sleep(max(0.0, begun + least - time.monotonic()))
                    self.late.note(time.monotonic() - begun - least)
            finally:
                self._at[0] = 0.0
            if took is not None:
                took((time.monotonic() - begun) / self.share)
            self._let_rest(begun)
            made = self.host_copies.mark()
            if lane == "compute":
                self._busy[0] += time.monotonic() - begun
            if self.tracer is not NO_TRACE:
                synchronise(self.device)  # what is drawn is the compute, not its being asked for
                self.tracer.span(lane, name, begun, time.monotonic(), **labels)
            return result, made

        result: tuple[Any, Any] = await self.compute(drawn, *arguments)
        return result

    def _rest(self) -> None:
        """Wait until the device has rested for long enough since what it computed last."""
        if (left := self._rests_until[0] - time.monotonic()) > 0:
            time.sleep(left)

    def _let_rest(self, begun: float) -> None:
        """Note how long the device is to rest after an action that began at `begun`; nobody waits for it here."""
        if self.share < 1.0:
            synchronise(self.device)  # what was asked of an accelerator is done only then
            now = time.monotonic()
            self._rests_until[0] = now + (now - begun) * (1.0 / self.share - 1.0)

    def drawn(self, lane: Lane, name: str, begun: float, **labels: int) -> None:
        """Trace a span from `begun` (`time.monotonic()`) until now."""
        self.tracer.span(lane, name, begun, time.monotonic(), **labels)
