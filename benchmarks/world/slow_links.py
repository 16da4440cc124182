"""What orders and reductions that know the links save, by the clock, beside those of free links: on the same peers.

    python -m benchmarks.world.slow_links [--worlds 3 4 5 home] [--micro-batches 8 32 128] [--alone 8 16] [--out FILE]
        [--missing]

Before: `[plan] in_flight = "least"` and `parts = "equal"`. After: what `[plan]` chooses when both are "auto". The
schedule is open in both, both are searched for as long, with the same seed, on the links as they were asked for. The
bound holds for every plan (`dtfm_lab.bounds.step_bound`), whatever its order. Data parallel alone (`--alone`,
worldwide, one micro-batch a peer) has one stage, and the bound that knows this.

Many micro-batches a second, or many peers, are more than a small machine computes in time: there the clock goes slower
than the world (`Row.stretch`), and what is told is the world's time.
"""

import argparse
import asyncio
import math
from collections.abc import AsyncIterator, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import keep, markdown, show, values, values_with
from benchmarks.world.paced import Running, World, on_true_links
from benchmarks.world.placements import grid
from benchmarks.world.worlds import chosen, paper_world
from dtfm_coordinator.allocator.all_reduces.chosen_trees import with_trees
from dtfm_coordinator.allocator.all_reduces.sized_parts import by_links
from dtfm_coordinator.allocator.allocate import allocate
from dtfm_coordinator.allocator.workload import Workload, pose
from dtfm_lab.bounds.step_bound import data_parallel_bound, least_bound
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import actions_of, most_in_flight

SEARCH_SECONDS = 10.0
SEQUENCE = 64
"""Tokens of a micro-batch."""
FEW = 8
"""Micro-batches that two cores compute in time; with more of them the clock goes slower by the root of how many times
more."""
STRETCH = 2.0
"""How many times as long data parallel alone takes by the clock on eight peers; with more it is as many times more."""
HEADINGS = [
    "world", "micro-batches", "what", "plan", "kept", "measured s", "tokens/s", "simulated s", "off", "bound s",
    "after / before", "gap closed", "clock",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One plan, and the seconds of its steps in the world's time."""

    world: str
    micro_batches: int
    what: str
    plan: str
    kept: int
    measured: float
    simulated: float
    bound: float
    stretch: float = 1.0
    """Seconds by the clock for each of the world's."""

    def cells(self, before: "Row") -> list[str]:
        """For a table, beside the plan for free links."""
        gap = before.measured - before.bound
        closed = f"{(before.measured - self.measured) / gap:.0%}" if self is not before and gap > 0 else ""
        return [
            self.world, str(self.micro_batches), self.what, self.plan, str(self.kept), f"{self.measured:.2f}",
            f"{self.micro_batches * SEQUENCE / self.measured:.0f}", f"{self.simulated:.2f}",
            f"{self.simulated / self.measured - 1:+.1%}", f"{self.bound:.2f}",
            "" if self is before else f"{self.measured / before.measured:.2f}", closed, f"x {self.stretch:g}",
        ]  # fmt: skip


ALONE = "alone"


def world_of(name: str, count: int) -> World:
    """A world by its name, with so many micro-batches; for `ALONE` the one worldwide with so many peers."""
    if name == ALONE:
        world = paper_world(5, count, stretch=STRETCH * count / 8, micro_batches=count)
        return replace(world, name=f"worldwide, data parallel alone, {count} peers")
    stretch = 1.0 if name == "home" else max(1.0, math.sqrt(count / FEW))  # homes have slow devices
    return replace(chosen(name), micro_batches=count, stretch=stretch)


def found(world: World, *, alone: bool) -> list[tuple[str, Plan]]:
    """The plans to compare."""
    if alone:
        plan = grid(world.view.ids, 1, world.layers, world.micro_batches)
        sized, cost = by_links(world.small, world.work, plan)
        return [("before", plan), ("after", with_trees(world.small, world.work, sized, cost)[0])]
    plans = []
    for what, in_flight, parts in (("before", "least", "equal"), ("after", "auto", "auto")):
        work = opened(world, in_flight, parts)
        plans.append((what, allocate(world.small, work, seed=0, budget=SEARCH_SECONDS)))
    return plans


def bound_of(world: World, *, alone: bool) -> float:
    """Seconds of a step, in the world's time, that no plan can undercut; of data parallel alone, that none of one stage
    can."""
    if alone:
        return data_parallel_bound(pose(world.small, world.work, world.view.ids)) / world.stretch
    return least_bound(world.small, opened(world, "auto", "auto")) / world.stretch


def opened(world: World, in_flight: str, parts: str) -> Workload:
    """The world's job with an open schedule."""
    changes = {"schedule": "auto", "in_flight": in_flight, "parts": parts}
    planning = world.work.planning.model_copy(update=changes)
    return Workload(world.work.demand, world.micro_batches, planning)


def words(plan: Plan) -> str:
    """A plan's schedule and the numbers of peers of its stages."""
    counts = [len(plan.replicas(stage)) for stage in range(len(plan.stages))]
    parts = ", sized parts" if plan.parts is not None else ""
    trees = ", trees" if plan.trees is not None else ""
    return f"{plan.schedule}, {' + '.join(map(str, counts))}{parts}{trees}"


async def measure(name: str, micro_batches: int, steps: int, has: Collection[str]) -> AsyncIterator[Row]:
    """Both plans of one world and number of micro-batches but those that it `has`."""
    world = world_of(name, micro_batches)
    plans = [(what, plan) for what, plan in found(world, alone=name == ALONE) if what not in has]
    if not plans:
        return
    print(world.said, *(words(plan) for _, plan in plans), sep="\n", flush=True)
    bound = bound_of(world, alone=name == ALONE)
    async with Running.running(world, forced=plans[0][1]) as running:
        for what, plan in plans:
            measured = await running.measure(plan, steps)
            kept = max(most_in_flight(actions_of(plan, peer)) for peer in plan.peers)
            took, simulated = (one / world.stretch for one in (measured.median, on_true_links(world, plan)))
            row = Row(world.name, micro_batches, what, words(plan), kept, took, simulated, bound, world.stretch)
            print(row, " ".join(f"{s:.2f}" for s in measured.seconds), f"late {measured.late * 1e3:.1f} ms", flush=True)
            yield row


def summary(rows: list[Row]) -> str:
    """How far the simulator was off."""
    off = np.array([abs(row.simulated / row.measured - 1) for row in rows])
    return f"{len(rows)} plans: simulated against measured {off.mean():.1%} in the mean, {off.max():.1%} at worst.\n"


def write(out: Path | None, kept: dict[str, list[dict[str, Any]]]) -> None:
    """Print and keep all rows."""
    ordered = sorted(kept, key=lambda key: (key.split()[0], int(key.split()[1])))
    rows, cells = [Row(**row) for key in ordered for row in kept[key]], []
    for row in rows:
        before = next(one for one in rows if (one.world, one.micro_batches) == (row.world, row.micro_batches))
        cells.append(row.cells(before))
    show("Orders and reductions for slow links, by the clock", HEADINGS, cells)
    said = (
        'Medians of 3 to 6 steps, 8 paced peers. "Kept": most micro-batches whose activations a peer keeps. '
        '"Gap closed": of the seconds above the bound. "Clock": seconds by it for each of the world\'s, in which '
        "all are told.\n"
    )
    parts = [said, markdown("Seconds a step", HEADINGS, cells), summary(rows)]
    keep(out, "Orders and reductions for slow links, by the clock", "python -m benchmarks.world.slow_links", parts)


async def fill(name: str, micro_batches: int, steps: int, out: Path | None, missing: bool) -> None:
    """Measure one world and number of micro-batches; each row is kept as soon as it is there."""
    key = f"{name} {micro_batches}"
    rows, stretch = [Row(**value) for value in values(out).get(key, [])], world_of(name, micro_batches).stretch
    kept = {row.what: row for row in rows if row.stretch == stretch}  # others were told by another clock
    async for row in measure(name, micro_batches, steps, list(kept) if missing else []):
        kept[row.what] = row
        ordered = [asdict(kept[what]) for what in ("before", "after") if what in kept]
        write(out, values_with(out, key, ordered))


def reckon_anew(name: str, micro_batches: int, out: Path) -> None:
    """Put the bound of one world and number of micro-batches anew into the rows that are kept of it."""
    key = f"{name} {micro_batches}"
    bound = bound_of(world_of(name, micro_batches), alone=name == ALONE)
    rows = [{**row, "bound": bound} for row in values(out).get(key, [])]
    write(out, values_with(out, key, rows))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="*", default=["3", "4", "5", "home"])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--alone", type=int, nargs="*", default=[8, 16], help="peers of data parallel alone")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path, help="rows of other worlds that it has stay")
    parser.add_argument("--missing", action="store_true", help="measure only what it has no row of yet")
    parser.add_argument("--bounds", action="store_true", help="measure nothing: reckon anew the bounds that --out has")
    arguments = parser.parse_args()
    if arguments.bounds and arguments.out is None:
        parser.error("--bounds needs --out: the table whose bounds are to be made anew")
    rows = [(name, count) for name in arguments.worlds for count in arguments.micro_batches]
    for name, count in [*rows, *((ALONE, count) for count in arguments.alone)]:
        if arguments.bounds:
            reckon_anew(name, count, arguments.out)
            continue
        asyncio.run(fill(name, count, arguments.steps, arguments.out, arguments.missing))


if __name__ == "__main__":
    main()
