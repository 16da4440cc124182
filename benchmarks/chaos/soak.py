"""Minutes of random faults: does the run go on, is its curve the one of one process, and does anything leak?

    python -m benchmarks.chaos.soak [--minutes 20] [--seed 0] [--out benchmarks/results/soak.md]

Six nodes, planned by the allocator. Every few seconds one or two are killed, stopped for a while, or leave; they come
back a little later. One node is only ever left alone, so that what it and the coordinator take can be followed.
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from tests.harness.daemon import Daemon
from tests.harness.swarm import Swarm, solo

from benchmarks.chaos.campaign import difference
from benchmarks.tables import keep, markdown, show

NODES = 6
PAUSE_SECONDS = (3.0, 9.0)
DOWN_SECONDS = (0.5, 8.0)
STEPS = 100_000
SAMPLE_SECONDS = 5.0
REPLAYED_STEPS = 20
Sample = tuple[int, int, int, int]
"""Resident bytes, file descriptors, sockets, tasks."""


class Soak:
    """One soak."""

    def __init__(self, swarm: Swarm, seed: int) -> None:
        self._swarm, self._random = swarm, random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.samples: dict[str, list[tuple[float, Sample]]] = {}
        self._begun = time.monotonic()
        self._absent: set[Daemon | str] = set()

    async def run(self, seconds: float) -> None:
        """Let things happen for so long."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(self._sample())
            while time.monotonic() < end:
                await asyncio.sleep(self._random.uniform(*PAUSE_SECONDS))
                away = len(self._absent)
                if away < 2:
                    node = self._random.choice([n for n in self._swarm.nodes[1:] if n.name not in self._absent])
                    tasks.create_task(self._hit(node))
            sampling.cancel()

    async def _hit(self, node: Daemon) -> None:
        """Something happens to a node, which returns."""
        self._absent.add(node.name)
        kind = self._random.choice(("kill", "kill", "stop", "leave"))
        self.faults[kind] += 1
        down = self._random.uniform(*DOWN_SECONDS)
        if kind == "stop":
            node.signal(signal.SIGSTOP)
            await asyncio.sleep(down)
            node.signal(signal.SIGCONT)
        else:
            node.signal(signal.SIGKILL if kind == "kill" else signal.SIGINT)
            if await node.ended(70) is None:
                raise AssertionError(f"{node.name} did not end after {kind}\n{node.tail()}")
            await asyncio.sleep(down)
            await node.start()
            peer = self._swarm.peer_of(node)
            await self._swarm.until(
                lambda: self._swarm.statuses().get(peer, "measuring") != "measuring", "it is back", 120
            )
        self._absent.discard(node.name)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            resources = await asyncio.to_thread(self._swarm.resources)
            for daemon in (self._swarm.coordinator, self._swarm.nodes[0]):
                if daemon.name in resources:
                    sample = (*resources[daemon.name], _tasks(daemon))
                    self.samples.setdefault(daemon.name, []).append((time.monotonic() - self._begun, sample))


def _tasks(daemon: Daemon) -> int:
    try:
        return int(json.loads((daemon.folder / "status.json").read_text())["tasks"])
    except (OSError, ValueError, KeyError):
        return 0


async def soak(minutes: float, seed: int) -> tuple[list[list[str]], list[list[str]]]:
    """What happened, and what it took; as rows of two tables."""
    async with Swarm.running() as swarm:
        job = swarm.job(STEPS, checkpoint=100, shadow=10)
        await swarm.serve(job, "--min-nodes", NODES)
        for _ in range(NODES):
            await swarm.join()
        await swarm.until(lambda: swarm.step >= 5, "the first steps are done", 180)
        soaking = Soak(swarm, seed)
        await soaking.run(60 * minutes)
        here = swarm.step
        await swarm.until(lambda: swarm.step > here, "training goes on after it", 120)
        swarm.coordinator.signal(signal.SIGINT)
        for node in swarm.nodes:
            node.signal(signal.SIGINT)
        for daemon in [*swarm.nodes, swarm.coordinator]:
            await daemon.ended(90)
        rows, events = swarm.rows(), swarm.events()
        reference = await solo(swarm.folder, job, until=len(rows))
        replayed, first = await _replayed(swarm, job, rows)
    early, late = difference(rows, reference, 1, 20), difference(rows, reference, 1, len(rows))
    happened = [
        ["faults", ", ".join(f"{count} {kind}" for kind, count in sorted(soaking.faults.items()))],
        ["plans", str(len(events))],
        ["steps", f"{len(rows):,}, {sum(event.repeated for event in events)} of them run again"],
        ["steps run again by one fault", f"at most {max(event.repeated for event in events)}"],
        ["seconds between a plan and the next one", _spread([e.started_at - e.called_at for e in events])],
        ["state moved", f"{sum(event.moved_bytes for event in events) / 1e6:,.0f} MB"],
        ["loss beside one process's, first 20 steps", f"{early:.1e}"],
        [f"loss beside one process's, all {len(rows):,} steps", f"{late:.1e}"],
        [f"replayed from the checkpoint of step {first - 1}: loss over {len(replayed)} steps",
         f"{difference(rows[first - 1 : first - 1 + len(replayed)], replayed, 1, len(replayed)):.1e}"],
    ]  # fmt: skip
    return happened, [_trend(name, samples) for name, samples in soaking.samples.items()]


async def _replayed(swarm: Swarm, job: Path, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """What one process makes of the last checkpoint but those at the very end, and its first step."""
    checkpoints = sorted((swarm.coordinator.folder / "checkpoints").glob("step-*"))
    chosen = next(path for path in reversed(checkpoints) if int(path.name[5:]) + REPLAYED_STEPS <= len(rows))
    state = swarm.folder / "replay"
    (state / "checkpoints").mkdir(parents=True)
    shutil.copytree(chosen, state / "checkpoints" / chosen.name)
    first = int(chosen.name[5:]) + 1
    return await solo(swarm.folder, job, until=first - 1 + REPLAYED_STEPS, state=state), first


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    return (
        f"median {median(ordered):.1f}, 90 % below {ordered[int(0.9 * (len(ordered) - 1))]:.1f}, most {ordered[-1]:.1f}"
    )


def _trend(name: str, samples: list[tuple[float, Sample]]) -> list[str]:
    """Medians of the first and of the last quarter, of which the first minute is left out."""
    warm = [sample for at, sample in samples if at > 60] or [sample for _, sample in samples]
    quarter = max(1, len(warm) // 4)
    cells = [name]
    for index, unit in ((0, 1e6), (1, 1), (2, 1), (3, 1)):
        before, after = (median(s[index] for s in part) / unit for part in (warm[:quarter], warm[-quarter:]))
        cells.append(f"{before:,.0f} -> {after:,.0f}")
    return cells


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    happened, resources = asyncio.run(soak(arguments.minutes, arguments.seed))
    title = f"{arguments.minutes:g} minutes of random faults on {NODES} nodes"
    headings = ["daemon, helpers included", "resident MB", "file descriptors", "sockets", "tasks"]
    show(title, ["", ""], happened)
    show("First and last quarter", headings, resources)
    keep(
        arguments.out,
        title,
        f"python -m benchmarks.chaos.soak --minutes {arguments.minutes:g} --seed {arguments.seed}",
        [markdown("What happened", ["", ""], happened), markdown("First and last quarter", headings, resources)],
    )


if __name__ == "__main__":
    main()
