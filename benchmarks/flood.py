"""Does a swarm train on while strangers flood every port that it has open, and is nothing of them left afterwards?

    python -m benchmarks.flood [--rounds 5] [--seconds 40] [--out benchmarks/results/flood.md]

A coordinator and two nodes, real processes, train on this machine. Strangers (`benchmarks/flooder.py`, a process of
their own) keep 1,000 connections to each TCP port that any of the swarm's processes listens on, each given up for a new
one after ten seconds, and say 100 MB a minute at each: rubbish, rubbish after half a handshake of TLS or of libp2p, or
nothing. They come from 200 addresses. In turn with that, the same strangers flood as many ports of a dummy, which reads
and drops all: the sender takes its part of the cores in both. Steps a second are counted after the first seconds of
each turn. Memory, threads, descriptors and connections are those of the swarm's processes, libp2p's daemons included.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.harness.swarm import Swarm

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show

WANTED = 0.8
"""Part of the steps beside the dummy's flood that must be left."""
SETTLE_SECONDS = 12.0
"""Seconds of each turn that do not count: until all strangers are there."""
CALM_SECONDS = 45.0
"""Seconds after the last flood for what it has left to go: longer than any stranger is waited for."""
FLOODED = ("the dummy", "the swarm")
NODES = 2
WATCH_SECONDS = 0.5
STEPS = 1_000_000


@dataclass(frozen=True)
class Holdings:
    """What one process has."""

    bytes: int
    threads: int
    descriptors: int
    connections: int
    """TCP connections, those that it listens for not among them."""


@dataclass
class Turn:
    """A flood of the swarm, or of the dummy."""

    kind: str
    steps: float
    """Steps a second."""
    sent: dict[str, Any] = field(default_factory=dict)
    """What the strangers count."""
    processor: dict[str, float] = field(default_factory=dict)
    """Seconds of the processor a second that each process has taken."""


def processes(swarm: Swarm) -> dict[str, psutil.Process]:
    """Return each process of the swarm by a name for people."""
    found = {}
    for daemon in (swarm.coordinator, *swarm.nodes):
        main = psutil.Process(daemon.pid)
        found[daemon.name] = main
        for number, child in enumerate(main.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found[f"{daemon.name}'s {child.name()}{number or ''}"] = child
    return found


def ports(swarm: Swarm) -> dict[int, str]:
    """Return every TCP port at which a process of the swarm listens, and whose it is."""
    found = {}
    for name, process in processes(swarm).items():
        for one in process.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                found[one.laddr.port] = name
    return dict(sorted(found.items(), key=lambda item: item[1]))


def holdings(process: psutil.Process) -> Holdings:
    """Return what a process has now."""
    with process.oneshot():
        connections = [one for one in process.net_connections("tcp") if one.status != psutil.CONN_LISTEN]
        return Holdings(process.memory_info().rss, process.num_threads(), process.num_fds(), len(connections))


async def watched(found: dict[str, psutil.Process], peaks: dict[str, int]) -> None:
    """Note the most memory of each process, until cancelled."""
    while True:
        for name, process in found.items():
            with contextlib.suppress(psutil.Error):
                peaks[name] = max(peaks.get(name, 0), process.memory_info().rss)
        await asyncio.sleep(WATCH_SECONDS)


@contextlib.asynccontextmanager
async def dummies(count: int) -> AsyncIterator[list[int]]:
    """Have so many ports at which everything is read and dropped."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.flooder", "dummy", "--count", str(count), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def turn(swarm: Swarm, kind: str, targets: Sequence[int], options: argparse.Namespace) -> Turn:
    """Flood these ports, and count the steps meanwhile."""
    if not targets:
        steps, processor = await pace(swarm, options.seconds)
        return Turn(kind, steps, {}, processor)
    flooder = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.flooder", "flood",
        "--ports", ",".join(map(str, targets)), "--connections", str(options.connections),
        "--megabytes", str(options.megabytes), "--seconds", str(options.seconds),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        steps, processor = await pace(swarm, options.seconds)
        said, _ = await flooder.communicate()
    finally:
        if flooder.returncode is None:
            flooder.kill()
            await flooder.wait()
    return Turn(kind, steps, json.loads(said), processor)


async def pace(swarm: Swarm, seconds: float) -> tuple[float, dict[str, float]]:
    """Return the steps a second of the next so many seconds, but for the first ones, and each process's seconds of the
    processor a second."""
    await asyncio.sleep(SETTLE_SECONDS)
    found = processes(swarm) | {
        one.cmdline()[3]: one for one in psutil.Process().children() if "flooder" in str(one.cmdline())
    }
    first, used, begun = swarm.step, {name: _processor(one) for name, one in found.items()}, time.monotonic()
    await asyncio.sleep(seconds - SETTLE_SECONDS)
    passed = time.monotonic() - begun
    return (swarm.step - first) / passed, {
        name: (_processor(one) - used[name]) / passed for name, one in found.items() if one.is_running()
    }


def _processor(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def experiment(options: argparse.Namespace) -> tuple[list[Turn], list[list[str]], dict[int, str], str]:
    """Run it: the turns, what each process had before, at most and after, the ports, and what went wrong."""
    async with Swarm.running() as swarm:
        layout = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
        await swarm.serve(swarm.job(STEPS, checkpoint=100_000), "--plan", layout, "--min-nodes", str(NODES))
        for _ in range(NODES):
            await swarm.join()
        await swarm.until(lambda: swarm.step >= 50, "it trains")
        open_ports, found, peaks = ports(swarm), processes(swarm), dict[str, int]()
        print("open:", ", ".join(f"{port} ({name})" for port, name in open_ports.items()), flush=True)
        before = {name: holdings(process) for name, process in found.items()}
        watching = asyncio.create_task(watched(found, peaks))
        turns = list[Turn]()
        async with dummies(len(open_ports)) as at_dummies:
            kinds = {"nobody": [], "the dummy": at_dummies, "the swarm": list(open_ports)}
            order = [FLOODED[(number + number // 2) % 2] for number in range(2 * options.rounds)]  # a b b a a b b a
            for number, kind in enumerate(("nobody", *order)):
                turns.append(await turn(swarm, kind, kinds[kind], options))
                said = ", ".join(f"{name} {share:.2f}" for name, share in turns[-1].processor.items())
                print(f"{number}/{len(order)} {kind}: {turns[-1].steps:.2f} steps/s; processor: {said}", flush=True)
        await asyncio.sleep(CALM_SECONDS)
        watching.cancel()
        after = {name: holdings(process) for name, process in found.items() if process.is_running()}
        rows = [_row(name, one, peaks[name], after.get(name)) for name, one in before.items()]
        faults = [] if len(after) == len(before) else ["a process has ended"]
        faults += ["the plan has changed"] if len(swarm.events()) > 1 else []
        return turns, rows, open_ports, "; ".join(faults)


HEADINGS = ("process", "memory before", "at most", "after", "connections", "descriptors", "threads")


def _row(name: str, before: Holdings, peak: int, after: Holdings | None) -> list[str]:
    if after is None:
        return [name, f"{before.bytes / 2**20:.0f} MiB", f"{peak / 2**20:.0f} MiB", "it has ended", "", "", ""]
    return [
        name,
        *(f"{size / 2**20:.0f} MiB" for size in (before.bytes, peak, after.bytes)),
        f"{before.connections}, {after.connections} after",
        f"{before.descriptors}, {after.descriptors} after",
        f"{before.threads}, {after.threads} after",
    ]


def main() -> None:
    """Run it; exit with 1 where too few steps are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each turn")
    parser.add_argument("--connections", type=int, default=1000, help="at a time, to each port")
    parser.add_argument("--megabytes", type=float, default=100.0, help="a minute, at each port")
    parser.add_argument("--out", type=Path, help="where to keep the tables")
    options = parser.parse_args()
    facts = machine()
    turns, memory, open_ports, faults = asyncio.run(experiment(options))
    by_kind = {kind: [one.steps for one in turns if one.kind == kind] for kind in FLOODED}
    ratios = [mine / other for mine, other in zip(by_kind["the swarm"], by_kind["the dummy"], strict=True)]
    ratio = sum(by_kind["the swarm"]) / sum(by_kind["the dummy"])
    headings = ("flooded", *(f"round {number + 1}" for number in range(options.rounds)), "mean")
    steps = [
        [kind, *(f"{one:.1f}" for one in by_kind[kind]), f"{statistics.mean(by_kind[kind]):.1f}"] for kind in FLOODED
    ]
    steps.append(["the swarm / the dummy", *(f"{one:.2f}" for one in ratios), f"{ratio:.2f}"])
    sent = [
        [one.kind, *(f"{one.sent[name]:,}" for name in ("connections", "failed", "bytes", "cut"))]
        for one in turns
        if one.sent
    ]
    verdict = (
        f"Of the steps beside the dummy's flood {ratio:.2f} are left (at least {WANTED} are wanted). "
        f"With no flood at all it makes {turns[0].steps:.1f} a second. "
        f"{faults or 'No process has ended, and the plan is the same.'}\n"
    )
    titles = ("Steps a second", "What the swarm's processes have", "What the strangers did in each turn")
    tables = ((headings, steps), (HEADINGS, memory), (("flooded", "connections", "failed", "bytes", "cut short"), sent))
    for title, (columns, rows) in zip(titles, tables, strict=True):
        show(title, columns, rows)
    print(verdict)
    at = ", ".join(sorted(f"{name}: {list(open_ports.values()).count(name)}" for name in set(open_ports.values())))
    parts = [f"Machine: {facts}. Ports: {at}.\n", verdict]
    parts += [markdown(title, columns, rows) for title, (columns, rows) in zip(titles, tables, strict=True)]
    command = (
        f"python -m benchmarks.flood --rounds {options.rounds} --seconds {options.seconds:g} "
        f"--connections {options.connections} --megabytes {options.megabytes:g}"
    )
    keep(options.out, "A flood", command, parts)
    sys.exit(0 if ratio >= WANTED and not faults else 1)


if __name__ == "__main__":
    main()
