"""How long do the others stand still when one more joins a swarm that trains already, and how soon does it take part?

    python -m benchmarks.world.late_newcomer [--worlds here home 5] [--nodes 4] [--runs 1]
        [--out benchmarks/results/late_newcomer.md]

All nodes but one train; after a calm while the last one is started, from nothing. `here` is the demo's job on this
machine; the others are emulated, paced worlds, as for `benchmarks.world.newcomer`. A gap is what lies between the
commits of two steps: usually one step. The one from plan to plan has the first step of the new plan in it. Seconds are
medians of the runs, gaps the longest of all.
"""

import argparse
import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track
from tests.harness.daemon import Daemon
from tests.harness.swarm import Swarm

from benchmarks.joining import JOB, marks_of
from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from benchmarks.world.newcomer import chosen
from benchmarks.world.paced import World, without_hystart
from dtfm_lab.emulation.emulated_network import EmulatedNetwork

DEADLINE = 120.0
"""Seconds after which a newcomer that does no work yet counts as left out."""
CALM_SECONDS = 15.0
"""Seconds of training before the newcomer is started; some steps at least."""
STEPS = 5
"""Fewest steps before it is started, and under the plan that it takes part in."""
HEADINGS = (
    "world", "nodes", "s from its start until it has entered", "is measured", "a plan with it is called",
    "is in force", "all hold its state", "its first step is final", "usual gap before",
    "longest until the plan is called", "from plan to plan", "usual gap after", "MB of state fetched then",
    "takes part",
)  # fmt: skip


@dataclass(frozen=True)
class Late:
    """What one newcomer took; seconds are from its start on."""

    marks: tuple[float, ...]
    """Seconds until what HEADINGS name."""
    gaps: tuple[float, ...]
    """Seconds between two steps before it came, at most until the plan is called, from plan to plan, and after."""
    moved: int
    """Bytes of state that peers fetched while all stood still."""


@contextlib.asynccontextmanager
async def training(name: str, nodes: int) -> AsyncIterator[tuple[Swarm, list[tuple[list[str], tuple[str, ...]]]]]:
    """Have a swarm with a job to train, which wants all `nodes` but one; with the options of each node, and by what it
    is started.
    """
    async with contextlib.AsyncExitStack() as stack:
        if name == "here":
            swarm = await stack.enter_async_context(Swarm.running())
            job = swarm.folder / "job.toml"
            job.write_text(JOB.read_text(encoding="utf-8").replace("steps = 400", "steps = 100000"), encoding="utf-8")
            await swarm.serve(job, "--min-nodes", nodes - 1)
            yield swarm, [([], ()) for _ in range(nodes)]
            return
        world: World = chosen(name, nodes)
        stack.enter_context(without_hystart())
        lab = await stack.enter_async_context(EmulatedNetwork.running(world.wiring()))
        swarm = await stack.enter_async_context(Swarm.running())
        job = swarm.folder / "job.toml"
        job.write_text(world.job_text, encoding="utf-8")
        swarm.coordinator.within = lab.within(nodes)
        await swarm.serve(job, "--announce", lab.address(nodes), "--min-nodes", nodes - 1, listen="0.0.0.0")
        yield swarm, [(["--pace", f"{world.pace(k) / 1e9:.9f}"], lab.within(k)) for k in range(nodes)]


async def run(name: str, nodes: int) -> Late | None:
    """Have the last of so many nodes join; None: it was given no work."""
    async with training(name, nodes) as (swarm, each):
        for options, within in each[:-1]:
            await swarm.join(*options, within=within)
        await swarm.until(lambda: swarm.step >= STEPS, "it trains", DEADLINE)
        await asyncio.sleep(CALM_SECONDS)
        begun, before = time.time(), swarm.layout()["version"]
        options, within = each[-1]
        last = await swarm.join(*options, "--log-format", "json", within=within)

        known = {swarm.peer_of(node) for node in swarm.nodes[:-1]}

        def version_with_it() -> int | None:
            """Version of the plan in force, if the newcomer has a part in it."""
            layout = swarm.layout()
            has_part = any(peer not in known for route in layout["routes"] for peer in route)
            return int(layout["version"]) if layout["version"] > before and has_part else None

        with contextlib.suppress(AssertionError):
            await swarm.until(version_with_it, "the newcomer trains", DEADLINE)
        if (version := version_with_it()) is None:
            print(f"{name}: not taken in: {swarm.status().get('text')}", flush=True)
            return None
        await swarm.until(lambda: len(_of(swarm.rows(), version)) > STEPS, "it trains with all", DEADLINE)
        found = _told(swarm, last, begun, version)
        print(name, nodes, found, flush=True)
        return found


def _of(rows: Sequence[dict[str, Any]], version: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["plan_version"] >= version]


def _told(swarm: Swarm, last: Daemon, begun: float, version: int) -> Late:
    rows = swarm.rows()
    event = next(event for event in swarm.events() if event.plan == version)
    new, old = _of(rows, version), [row for row in rows if row["plan_version"] < version]
    gaps = [(one["at"], two["at"] - one["at"]) for one, two in itertools.pairwise([*old, *new])]
    entered, measured = marks_of(last, ({"state": "measuring"}, {"state": "idle"}))
    changed = new[0]["at"]
    usual = median(gap for at, gap in gaps if begun - CALM_SECONDS < at < begun)
    until = max((gap for at, gap in gaps if begun < at < event.called_at and at + gap < changed), default=0.0)
    after = median(gap for at, gap in gaps if at >= changed)
    marks = (entered, measured, event.called_at, event.in_force_at, event.started_at, changed)
    return Late(
        tuple(mark - begun for mark in marks), (usual, until, changed - old[-1]["at"], after), event.moved_bytes
    )


def row(name: str, nodes: int, runs: Sequence[Late | None]) -> tuple[str, ...]:
    """Return a row under HEADINGS."""
    there = [one for one in runs if one is not None]
    part = f"{len(there)} of {len(runs)}"
    if not there:
        return name, str(nodes), *[""] * (len(HEADINGS) - 3), part
    marks = [f"{median(seconds):.1f}" for seconds in zip(*(one.marks for one in there), strict=True)]
    usual, until, between, after = zip(*(one.gaps for one in there), strict=True)
    gaps = [f"{seconds:.2f}" for seconds in (median(usual), max(until), max(between), median(after))]
    return name, str(nodes), *marks, *gaps, f"{median(one.moved for one in there) / 1e6:.1f}", part


def main() -> None:
    """Run it, and show and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["here", "home", "5"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    here, rows = machine(), []
    for name in options.worlds:
        for nodes in options.nodes:
            runs = [asyncio.run(run(name, nodes)) for _ in track(range(options.runs), name, transient=True)]
            rows.append(row(name, nodes, runs))
            print(" | ".join(rows[-1]), flush=True)
    title = "One more joins a swarm that trains"
    show(title, HEADINGS, rows)
    command = "python -m benchmarks.world.late_newcomer --worlds {} --nodes {} --runs {}".format(
        " ".join(options.worlds), " ".join(map(str, options.nodes)), options.runs
    )
    keep(options.out, "Late newcomers", command, [f"Machine: {here}.\n", markdown(title, HEADINGS, rows)])


if __name__ == "__main__":
    main()
