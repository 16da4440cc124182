"""How long does a newcomer take from `dtfm-node join` to training, where its links are those of homes or of the world?

    python -m benchmarks.world.newcomer [--worlds home 5] [--nodes 4 8 16 32] [--runs 1]
        [--out benchmarks/results/newcomer.md]

What was measured before lies beside the table, and stays in it: worlds and sizes may be measured one by one.

All nodes but one have joined, have measured their links, and wait for as many as the coordinator wants; then the last
one is started, from nothing. All are real programs, on emulated links, and compute at the pace of the devices that they
stand for. Links of homes have their real rates, those of the world are divided as elsewhere. Seconds are from that
command on, medians of the runs. Bytes are all that passes any link from the newcomer's first word until the plan is in
force, as the emulator counts them, and those to and from the newcomer alone: measuring is most of that. Last comes by
how much the rates of links that were measured are off, of which plans are made: what TCP's full packets carry of the
rate that was asked for is true. Links of more than 200 Mbit/s are left out there, for the emulator does not carry that.
What the plan that is in force then says of a step stands beside what its steps take, once its first two are over.
The memory of 32 programs is about 12 GB; starting them takes two cores some minutes.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.harness.swarm import Swarm

from benchmarks.joining import MARKS, marks_of, said_by
from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show, values, values_with
from benchmarks.world.paced import World, without_hystart
from benchmarks.world.worlds import home_world, paper_world
from dtfm_lab.emulation.accuracy import PAYLOAD
from dtfm_lab.emulation.emulated_network import Counts, EmulatedNetwork
from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.view.view import GBIT, View

DEADLINE = 900.0
AT_ONCE = 4
"""Nodes that are started at the same time: more would only wait for the processors."""
WARM, STEPS = 2, 6
"""Steps under a plan that are not counted, and those that are."""
MOST_EMULATED = 25e6
"""Bytes a second of a link that the emulator carries."""
HEADINGS = (
    "world", "nodes", "has entered", "device measured", "links measured", "plan in force", "first step",
    "MB in all", "MB of the newcomer", "takes part", "rates known", "off by, median", "95 %",
    "step predicted", "measured",
)  # fmt: skip


@dataclass(frozen=True)
class Joined:
    """What one newcomer took."""

    marks: tuple[float, ...]
    """Seconds until it had entered, its device was measured, its links were, the plan was in force, and the first step
    was done."""
    total: int
    own: int
    """Bytes of all links, and of those of the newcomer."""
    takes_part: bool
    off: tuple[float, ...]
    """By what share each measured link's rate is off, either way."""
    predicted: float
    """Seconds of a step, as the plan says."""
    step: float
    """Seconds of a step, the median of those that are counted."""


async def run(world: World) -> Joined:
    """Have the last of the world's nodes join."""
    nodes = len(world.view.ids)
    with without_hystart():
        async with EmulatedNetwork.running(world.wiring()) as lab, Swarm.running() as swarm:
            job = swarm.folder / "job.toml"
            job.write_text(world.job_text, encoding="utf-8")
            swarm.coordinator.within = lab.within(nodes)
            await swarm.serve(job, "--announce", lab.address(nodes), "--min-nodes", nodes, listen="0.0.0.0")
            turn, numbers = asyncio.Semaphore(AT_ONCE), dict[str, int]()

            async def join(number: int) -> None:
                async with turn:
                    node = await swarm.join("--pace", _pace(world, number), within=lab.within(number))
                    await swarm.until(lambda: swarm.peer_of(node), f"node {number} has joined", DEADLINE)
                    numbers[swarm.peer_of(node)] = number

            async with asyncio.TaskGroup() as joining:
                for number in range(nodes - 1):
                    joining.create_task(join(number))
            waited = "waiting", f"waiting for 1 more nodes ({nodes - 1} of {nodes} are ready)"
            await swarm.until(lambda: said_by(swarm) == waited, "the others are ready", DEADLINE)
            before, begun = await lab.counts(), time.time()
            last = await swarm.join(
                "--pace", _pace(world, nodes - 1), "--log-format", "json", within=lab.within(nodes - 1)
            )
            await swarm.until(lambda: said_by(swarm)[0] == "training", "a plan is in force", DEADLINE)
            after = await lab.counts()
            await swarm.until(lambda: swarm.step >= 1, "the first step is done", DEADLINE)
            marks = *marks_of(last, (*MARKS[1:4], {"phase": "training"})), float(swarm.rows()[0]["at"])
            takes_part = '"state": "starting"' in last.said()
            await swarm.until(
                lambda: len(_steps(swarm)) >= WARM + STEPS, "some steps under one plan are done", DEADLINE
            )
            counted = _steps(swarm)[WARM:]
            view = View.load(swarm.coordinator.folder / "view.json")
            numbers = dict.fromkeys(view.ids, nodes - 1) | numbers
            off = tuple(_off(world.wiring(), view, numbers))
    total, own = _spent(before, after, None), _spent(before, after, nodes - 1)
    seconds = median(row["seconds"] for row in counted)
    return Joined(
        tuple(at - begun for at in marks), total, own, takes_part, off, counted[-1]["predicted_seconds"], seconds
    )


def _steps(swarm: Swarm) -> list[dict[str, Any]]:
    """The steps under the plan of the newest one."""
    rows = swarm.rows()
    return [row for row in rows if row["plan_version"] == rows[-1]["plan_version"]]


def _pace(world: World, number: int) -> str:
    return f"{world.pace(number) / 1e9:.9f}"


def _off(wiring: Wiring, view: View, numbers: dict[str, int]) -> Iterator[float]:
    """Yield by what share the rate of each link that was measured is off."""
    for row, sender in enumerate(view.ids):
        for column, receiver in enumerate(view.ids):
            found = view.bandwidth_gbps[row, column] * GBIT
            if row != column and found > 0:  # neither unknown nor tried in vain
                true = wiring.path_rate(numbers[sender], numbers[receiver])
                if true <= MOST_EMULATED:
                    yield abs(found / (true * PAYLOAD) - 1)


def _spent(before: Counts, after: Counts, host: int | None) -> int:
    """Bytes that all links have carried between two counts, or those of one host."""
    return sum(size - before.bytes.get(pair, 0) for pair, size in after.bytes.items() if host is None or host in pair)


def row(world: World, runs: list[Joined]) -> tuple[str, ...]:
    """Return a row under HEADINGS."""
    marks = [f"{median(seconds):.1f}" for seconds in zip(*(one.marks for one in runs), strict=True)]
    sizes = (median(one.total for one in runs), median(one.own for one in runs))
    part = f"{sum(one.takes_part for one in runs)} of {len(runs)}"
    off = [share for one in runs for share in one.off]
    errors = str(len(off)), *(f"{np.percentile(off, percent):.1%}" for percent in (50, 95))
    steps = [f"{median(seconds):.2f} s" for seconds in ([one.predicted for one in runs], [one.step for one in runs])]
    moved = [f"{size / 1e6:.1f}" for size in sizes]
    return world.name, str(len(world.view.ids)), *marks, *moved, part, *errors, *steps


def chosen(name: str, nodes: int) -> World:
    """Return a world by its name, with so many nodes."""
    return replace(home_world(nodes), shrink=1.0) if name == "home" else paper_world(int(name), nodes)


def main() -> None:
    """Run it, and show and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["home", "5"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    kept = values(options.out)
    for name in options.worlds:
        for nodes in options.nodes:
            here, world = machine(), chosen(name, nodes)
            cells = row(world, [asyncio.run(run(world)) for _ in range(options.runs)])
            print(" | ".join(cells), flush=True)
            kept |= values_with(options.out, f"{name} {nodes}", [options.runs, here, *cells])
            write(options.out, kept)


def write(out: Path | None, kept: dict[str, list[Any]]) -> None:
    """Show what was measured, and keep the table."""
    title = "Seconds from `dtfm-node join` to the first step, on emulated links"
    ordered = [kept[key] for key in sorted(kept, key=lambda key: (not key.startswith("home"), int(key.split()[1])))]
    # Rows that were kept before the last columns came have none of them.
    rows = [(*cells, *[""] * (len(HEADINGS) - len(cells)), str(runs)) for runs, _, *cells in ordered]
    show(title, (*HEADINGS, "runs"), rows)
    machines = "; ".join(dict.fromkeys(here.rpartition("; load")[0] for _, here, *_ in ordered))
    said = [f"Machine: {machines}.\n", markdown(title, (*HEADINGS, "runs"), rows)]
    keep(out, "Newcomers", "python -m benchmarks.world.newcomer", said)


if __name__ == "__main__":
    main()
