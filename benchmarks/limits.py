"""Limits of nodes, held to what an emulated network carries: caps over every ten seconds, the predicted step with them,
and seconds from a pause to silence.

    python -m benchmarks.limits [--only caps | pauses] [--seconds 40] [--out benchmarks/results/limits.md]

The network counts IP packets, headers included, and knows nothing of caps. Needs root; run it with `nice -n -15` where
others compute, too, for nodes keep the priority with which they are started. A machine that trains, and runs
the coordinator, is never idle: for `--when-idle` the node counts the programs alone that stand for its person's.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.harness.daemon import Daemon
from tests.harness.jobs import Size
from tests.harness.swarm import Swarm

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.wiring import Wiring

JOB = Size(
    "limits", hidden=256, intermediate=512, sequence=64, evaluated=4, slow=1.0, checkpoint=100_000, shadow=100_000
)
"""Boundaries of 64 kB a micro-batch, and states of some 25 MB a node."""
LINE_MBIT, ONE_WAY = 50.0, 0.01
"""Rate and one-way seconds of every link."""
LOOK_SECONDS = 0.25
WINDOW = 10.0
SILENT_BYTES, SILENT_CORES = 3000.0, 0.1
"""Bytes a second, and cores, below which a node is silent: signs of life, and looks at its limits."""
SILENT_SECONDS = 5.0
"""Seconds for which it must be, so that a moment between two steps is none."""
BURNER = "while True: pass  # stands for a game"
PACE = ("--pace", "2.5")
"""GFLOP/s: the processors of this machine, which others use, too, are no bottleneck then."""
COPIES = "all: up and down 4 Mbit/s; copies of states for a spare go all the time"
CASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "no caps": ((), (), ()),
    "one node: up 4 Mbit/s": (("--upload", "4Mbit"), (), ()),
    "one node: down 4 Mbit/s": (("--download", "4Mbit"), (), ()),
    COPIES: (("--upload", "4Mbit", "--download", "4Mbit"),) * 3,
    "all: up 2 Mbit/s, down 6 Mbit/s": (("--upload", "2Mbit", "--download", "6Mbit"),) * 3,
}
CAPS = ["case", "node", "direction", "cap, Mbit/s", "most over 10 s, Mbit/s", "of the cap"]
STEPS = ["case", "steps", "measured step, s", "predicted, s", "off"]
PAUSES = ["what", "seconds to silence", "bytes a second then", "cores then", "bytes sent from then to silence"]

IDLE_LINES = "A step's messages leave a line idle in between: copies of states alone keep a cap full.\n"
UNCOUNTED = "No prediction counts copies of states for a spare; in that case they go after every step.\n"
LEFT = (
    "Seconds count from the command's start, which takes two of them. Bytes are those of both directions; what is left "
    "are signs of life, the coordinator's words to all, and libp2p's own.\n"
)


@dataclass
class Traffic:
    """Traffic of hosts over time, as the network counts it."""

    at: list[float] = field(default_factory=list)
    totals: list[dict[tuple[int, int], int]] = field(default_factory=list)

    async def watch(self, lab: EmulatedNetwork) -> None:
        """Look at the counts until cancelled."""
        while True:
            self.totals.append((await lab.counts()).bytes)
            self.at.append(time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)

    def bytes_of(self, host: int, end: int) -> list[int]:
        """Return what a host has sent (`end` 0) or received (1) by each look."""
        return [sum(size for pair, size in total.items() if pair[end] == host) for total in self.totals]

    def most(self, host: int, end: int, since: float) -> float:
        """Return the most bytes a second over any window."""
        seen = [(at, size) for at, size in zip(self.at, self.bytes_of(host, end), strict=True) if at >= since]
        return max(
            (later - earlier) / (b - a)
            for a, earlier in seen
            for b, later in seen
            if WINDOW <= b - a < WINDOW + 2 * LOOK_SECONDS
        )


@contextlib.asynccontextmanager
async def running(
    options: Sequence[tuple[str, ...]],
    program: tuple[str, ...] = ("dtfm-node",),
    stages: int | None = None,
    shadow: int | None = None,
) -> AsyncIterator[tuple[EmulatedNetwork, Swarm]]:
    """Run a swarm that trains: a node for each of `options`, and the coordinator on the host behind."""
    count = len(options)
    hosts = count + 1
    rate = [[None if a == b else LINE_MBIT * 1.25e5 for b in range(hosts)] for a in range(hosts)]
    delay = [[0.0 if a == b else ONE_WAY for b in range(hosts)] for a in range(hosts)]
    wiring = Wiring(delay=delay, rate=rate, up=[None] * hosts, down=[None] * hosts)
    async with EmulatedNetwork.running(wiring) as lab, Swarm.running(JOB) as swarm:
        swarm.coordinator.within = lab.within(count)
        job = swarm.job(steps=100_000, shadow=shadow, tied=False)
        if stages is not None:
            job.write_text(f"{job.read_text()}[plan]\nstages = {stages}\n")
        await swarm.serve(job, "--announce", lab.address(count), "--min-nodes", count, listen="0.0.0.0")
        for host, given in enumerate(options):
            await swarm.join(*PACE, *given, within=lab.within(host), program=program)
        await swarm.until(lambda: swarm.step >= 2, "it trains", 600)
        yield lab, swarm


async def caps(cases: Sequence[str], seconds: float) -> tuple[list[list[str]], list[list[str]]]:
    """Train under caps; return what went over the network, and what steps took."""
    went, took = list[list[str]](), list[list[str]]()
    for name in cases:
        options = CASES[name]
        stages, shadow = (2, 1) if name == COPIES else (len(options), None)
        async with running(options, stages=stages, shadow=shadow) as (lab, swarm):
            traffic = Traffic()
            watching = asyncio.create_task(traffic.watch(lab))
            since, first, version = time.monotonic(), swarm.step, swarm.layout()["version"]
            await asyncio.sleep(seconds)
            rows = [row for row in swarm.rows() if row["step"] > first and row["plan_version"] == version]
            if swarm.layout()["version"] != version:
                print("the plan has changed meanwhile", flush=True)
            watching.cancel()
            for host, given in enumerate(options):
                for option, rate in zip(given[::2], given[1::2], strict=True):
                    end, cap = int(option == "--download"), float(rate.removesuffix("Mbit"))
                    most = traffic.most(host, end, since) * 8e-6
                    went.append(
                        [name, str(host + 1), option[2:], f"{cap:g}", f"{most:.3f}", f"{most / cap:.1%}"]
                    )  # fmt: skip
            measured = statistics.median(row["seconds"] for row in rows)
            predicted = rows[-1]["predicted_seconds"]
            took.append(
                [name, str(len(rows)), f"{measured:.2f}", f"{predicted:.2f}", f"{predicted / measured - 1:+.1%}"]
            )
            print(*went[-2:], took[-1], sep="\n", flush=True)
    return went, took


def cores_of(node: Daemon) -> float:
    """Return the core seconds that a node and its helpers have used."""
    used = 0.0
    with contextlib.suppress(psutil.Error):
        main = psutil.Process(node.pid)
        for one in (main, *main.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                used += times.user + times.system
    return used


async def to_silence(lab: EmulatedNetwork, node: Daemon, host: int, limit: float = 180.0) -> list[str]:
    """Watch a node from now on until it is silent; return the seconds that took, and what it does then."""
    begun = time.monotonic()
    seen: list[tuple[float, int, float]] = []
    while time.monotonic() < begun + limit:
        counts = (await lab.counts()).bytes
        sent = sum(size for pair, size in counts.items() if host in pair)
        seen.append((time.monotonic() - begun, sent, cores_of(node)))
        recent = [one for one in seen if one[0] >= seen[-1][0] - SILENT_SECONDS]
        span = recent[-1][0] - recent[0][0]
        if span >= SILENT_SECONDS - 2 * LOOK_SECONDS:
            rate, cores = ((recent[-1][i] - recent[0][i]) / span for i in (1, 2))
            if rate < SILENT_BYTES and cores < SILENT_CORES:
                return [
                    f"{recent[0][0]:.1f}",
                    f"{rate:.0f}",
                    f"{cores:.2f}",
                    f"{(recent[0][1] - seen[0][1]) / 1e6:.2f} MB",
                ]
        await asyncio.sleep(LOOK_SECONDS)
    return [f"more than {limit:.0f}", "", "", ""]


async def pauses() -> list[list[str]]:
    """Pause a node in each way."""
    rows = []
    for what, given in {"`pause`": (), "`pause --now`": ("--now",), "`pause`, uploads capped to 4 Mbit/s": ()}.items():
        capped = ("--upload", "4Mbit") if "capped" in what else ()
        async with running((capped,) * 3) as (lab, swarm):
            number = next(number for number, node in enumerate(swarm.nodes) if node not in swarm.spares())
            node = swarm.nodes[number]
            asking = asyncio.create_task(swarm.run("dtfm-node", "pause", *given, "--state-dir", node.folder))
            rows.append([what, *await to_silence(lab, node, number)])
            print(*rows[-1], await asking, swarm.statuses(), sep="  ", flush=True)
    own_program = (sys.executable, "-m", "benchmarks.limits")
    async with running((("--when-idle",),) * 3, own_program) as (lab, swarm):
        number = next(number for number, node in enumerate(swarm.nodes) if node not in swarm.spares())
        burning = [await asyncio.create_subprocess_exec(sys.executable, "-c", BURNER) for _ in range(2)]
        try:
            rows.append(
                ["both cores taken, `--when-idle`", *await to_silence(lab, swarm.nodes[number], number, limit=60.0)]
            )
        finally:
            for process in burning:
                process.kill()
                await process.wait()
        print(*rows[-1], swarm.statuses(), sep="  ", flush=True)
    return rows


def node() -> None:
    """Be a node to which only the programs count that stand for its person's."""
    from dtfm_node.limits import machine_readings
    from dtfm_node.main import main as dtfm_node

    def core_seconds(own_processes: Sequence[psutil.Process]) -> float:
        used = 0.0
        for process in psutil.process_iter(["cmdline", "cpu_times"]):
            times = process.info["cpu_times"]
            if times is not None and BURNER in (process.info["cmdline"] or ()):
                used += times.user + times.system
        return used

    machine_readings.core_seconds_of_others = core_seconds
    dtfm_node()


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["caps", "pauses"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts, began_on = [], machine()
    if arguments.only != "pauses":
        went, took = asyncio.run(caps(arguments.cases, arguments.seconds))
        show("Most traffic of a node in any ten seconds", CAPS, went)
        show("Steps", STEPS, took)
        parts += [
            f"Machine: {began_on}.\n",
            markdown("Most traffic of a node in any ten seconds", CAPS, went),
            IDLE_LINES,
            markdown("Steps", STEPS, took),
            UNCOUNTED,
        ]
    if arguments.only != "caps":
        rows = asyncio.run(pauses())
        show("From a pause to silence", PAUSES, rows)
        parts += [markdown("From a pause to silence", PAUSES, rows), LEFT]
    keep(arguments.out, "Limits of a node", "python -m benchmarks.limits", parts)


if __name__ == "__main__":
    node() if sys.argv[1:2] == ["join"] else main()
