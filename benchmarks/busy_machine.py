"""Changes of plan in a swarm on one machine that others use, too: needless ones, and the one that is due.

    python -m benchmarks.busy_machine [--cases ...] [--seconds 30] [--out benchmarks/results/busy_machine.md]

Four nodes on this machine train the demo's job; after a calm while, other programs take its processors. Whatever the
plan is, the nodes are equally fast again when that is over, so no change of plan pays. In the last case a node alone
becomes five times slower, and stays so: there, a change is due.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
from tests.harness.swarm import Swarm

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.process import command_line

JOB = Path(__file__).parents[1] / "examples" / "demo.toml"
NODES = 4
CALM_SECONDS = 15.0
"""Seconds for which the swarm trains before anything happens, and after it."""
BURNER = "while True: pass"
TURN = 0.1
"""Seconds of which a slowed node has a fifth: short beside the silence after which others take it for dead."""
HEADINGS = ("meanwhile", "changes of plan", "looks for a better one", "steps a second before", "meanwhile", "after",
            "first change after", "why")  # fmt: skip


@contextlib.asynccontextmanager
async def burning(count: int) -> AsyncIterator[None]:
    """Have so many programs take a processor each."""
    processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", BURNER) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def nothing(swarm: Swarm, seconds: float) -> None:
    """Nobody else uses the machine (but who did already)."""
    await asyncio.sleep(seconds)


async def all_taken(swarm: Swarm, seconds: float) -> None:
    """A program for each processor computes all the time."""
    async with burning(os.cpu_count() or 1):
        await asyncio.sleep(seconds)


async def one_taken(swarm: Swarm, seconds: float) -> None:
    """A program computes all the time."""
    async with burning(1):
        await asyncio.sleep(seconds)


async def bursts(swarm: Swarm, seconds: float) -> None:
    """A program for each processor computes for two seconds of five."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        async with burning(os.cpu_count() or 1):
            await asyncio.sleep(2)
        await asyncio.sleep(3)


async def one_node_slow(swarm: Swarm, seconds: float) -> None:
    """A node that serves has a fifth of the time."""
    victim = psutil.Process(swarm.serving(0)[0].pid)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            victim.suspend()
            await asyncio.sleep(0.8 * TURN)
            victim.resume()
            await asyncio.sleep(0.2 * TURN)
    finally:
        victim.send_signal(signal.SIGCONT)


Case = Callable[[Swarm, float], Awaitable[None]]
CASES: dict[str, tuple[Case, float]] = {
    "nothing else runs": (nothing, 1.0),
    "a program for each processor": (all_taken, 1.0),
    "a program for one of them": (one_taken, 1.0),
    "programs in bursts of 2 s": (bursts, 1.0),
    "one node five times slower": (one_node_slow, 3.0),
}
"""What happens, and for how many times the seconds."""


async def measure(name: str, seconds: float) -> tuple[str, ...]:
    """Return a row under `HEADINGS`."""
    happens, times = CASES[name]
    async with Swarm.running() as swarm:
        job = swarm.folder / "job.toml"
        job.write_text(JOB.read_text(encoding="utf-8").replace("steps = 400", "steps = 100000"), encoding="utf-8")
        await swarm.serve(job, "--min-nodes", NODES)
        for _ in range(NODES):
            await swarm.join()
        await swarm.until(lambda: swarm.step >= 2, "it trains", 300)
        begun = time.time()
        marks = [(begun, swarm.step)]
        await asyncio.sleep(CALM_SECONDS)
        since = time.time()
        marks.append((since, swarm.step))
        await happens(swarm, times * seconds)
        marks.append((time.time(), swarm.step))
        await asyncio.sleep(CALM_SECONDS)
        marks.append((time.time(), swarm.step))
        changes = [event for event in swarm.events() if event.called_at >= begun]
        looked = swarm.coordinator.said().count("planning: planning for") - 1
        speeds = [f"{(last[1] - first[1]) / (last[0] - first[0]):.1f}" for first, last in itertools.pairwise(marks)]
        why = "; ".join(dict.fromkeys(event.why for event in changes))
        print(name, *(event.model_dump_json() for event in changes), sep="\n", flush=True)
        first = next((event.in_force_at - since for event in changes if event.called_at > since), None)
        return (
            name, str(len(changes)), str(looked), *speeds, "" if first is None else f"{first:.1f} s", why or "none"
        )  # fmt: skip


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds for which it happens")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with command_line.guarded():
        facts, rows = machine(), []
        for name in options.cases:
            rows.append(asyncio.run(measure(name, options.seconds)))
            print(rows[-1], flush=True)
        show("Changes of plan", HEADINGS, rows)
        command = f"python -m benchmarks.busy_machine --seconds {options.seconds:g}"
        parts = [f"Machine: {facts}.\n", markdown("Changes of plan", HEADINGS, rows)]
        keep(options.out, "Plans on a busy machine", command, parts)


if __name__ == "__main__":
    main()
