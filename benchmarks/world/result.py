"""The paper's result by the clock: the evolutionary plan against random, in-order and data-parallel ones, worldwide.

    python -m benchmarks.world.result [--peers 8 16] [--steps 6] [--out benchmarks/results/paper_result.md] [--missing]

Measured on paced peers, beside what the simulator says of the same reduced world; and the simulator at 64 peers beside
the paper's own measurements, so that reality = simulator at 8 and 16, and simulator = paper at 64.
"""

import argparse
import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.tables import keep, markdown, show, values, values_with
from benchmarks.v100 import CELLS, FINAL, Cell, fitted_on_64, fitted_on_single_pipelines, variants
from benchmarks.v100_runs import step_seconds
from benchmarks.world.paced import Running, World, on_true_links
from benchmarks.world.placements import at_random, grid, in_order, papers, searched
from benchmarks.world.worlds import paper_world
from dtfm_protocol.plan.plan import Plan

RANDOM_SEEDS = (1, 2, 3)
BASE = "the paper's search"
HEADINGS = [
    "peers",
    "placement",
    "shape",
    "measured s",
    "simulated s",
    "measured / the paper's search",
    "simulated / it",
    "packets late, ms",
]


@dataclass(frozen=True)
class Row:
    """One kind of placement."""

    peers: int
    name: str
    shape: str
    measured: float
    simulated: float
    late: float | None = None
    """Seconds by which the emulated network was late with a packet, in the mean."""

    def cells(self, base: "Row") -> list[str]:
        """For a table."""
        return [
            str(self.peers), self.name, self.shape, f"{self.measured:.2f}", f"{self.simulated:.2f}",
            f"{self.measured / base.measured:.2f}", f"{self.simulated / base.simulated:.2f}",
            "" if self.late is None else f"{self.late * 1e3:.1f}",
        ]  # fmt: skip


def placements(world: World) -> list[tuple[str, list[Plan]]]:
    """By kind; of random ones several."""
    small = world.small
    return [
        (BASE, [papers(world, 8)]),
        ("random", [at_random(world, 8, seed) for seed in RANDOM_SEEDS]),
        ("in order (Megatron's ranks)", [in_order(world, 8)]),
        ("this allocator, 8 stages", [searched(world, small, 8)]),
        ("this allocator", [searched(world, small)]),
        ("data parallel alone", [grid(world.view.ids, 1, world.layers, world.micro_batches)]),
    ]


async def measure(world: World, steps: int, has: Sequence[Row]) -> AsyncIterator[Row]:
    """All kinds of placement on one world but those that it `has`."""
    print(world.said, flush=True)
    kinds = [(name, plans) for name, plans in placements(world) if name not in {row.name for row in has}]
    if not kinds:
        return
    async with Running.running(world, forced=kinds[0][1][0]) as running:
        for name, plans in kinds:
            # A step of data parallel alone takes long, and all are alike.
            found = [await running.measure(plan, 3 if len(plan.stages) == 1 else steps) for plan in plans]
            shape = f"{len(plans[0].stages)} x {max(len(plans[0].replicas(s)) for s in range(len(plans[0].stages)))}"
            measured = statistics.median(one.median for one in found)
            simulated = statistics.median(on_true_links(world, plan) for plan in plans)
            row = Row(len(world.view.nodes), name, shape, measured, simulated, max(one.late for one in found))
            print(row, *(f"{one.median:.2f}" for one in found), sep="  ", flush=True)
            yield row


def at_64() -> tuple[list[str], list[list[str]]]:
    """Case 5 at 64 devices: simulated and as the authors measured it."""
    machine = fitted_on_64(list(variants(fitted_on_single_pipelines()).values())[FINAL])
    rows = []
    for batch in (1024, 4096):
        cells: dict[str, Cell] = {name: (5, name, 24, batch) for name in ("scheduled", "random", "megatron")}
        ours = {name: step_seconds(*cell, machine) for name, cell in cells.items()}
        paper = {name: CELLS[cell] for name, cell in cells.items()}
        for name in ("random", "megatron"):
            ratios = [seconds[name] / seconds["scheduled"] for seconds in (ours, paper)]
            rows.append([f"B{batch}", f"{name} / scheduled", *(f"{ratio:.2f}" for ratio in ratios)])
    return ["24 layers", "ratio", "simulated", "measured by the authors"], rows


def world_of(peers: int) -> World:
    """Worldwide with so many peers. More of them share the machine, so all times are longer."""
    return paper_world(5, peers, stretch=peers / 8, micro_batches=peers)


def beside_the_papers(rows: Sequence[Row]) -> list[list[str]]:
    """For a table."""
    base = next(row for row in rows if row.name == BASE)
    return [row.cells(base) for row in rows]


def write(out: Path | None, kept: dict[str, list[dict[str, Any]]]) -> None:
    """Keep the rows of all sizes."""
    by_size = {int(size): [Row(**value) for value in rows] for size, rows in kept.items()}
    headings, far = at_64()
    parts = [f"- {world_of(size).said}\n" for size in by_size]
    parts.append(f"Medians of 3 to 6 steps; of {len(RANDOM_SEEDS)} random placements the median.\n")
    cells = [cells for rows in by_size.values() for cells in beside_the_papers(rows)]
    parts.append(markdown("Measured and simulated on the reduced world", HEADINGS, cells))
    parts.append(markdown("The simulator at 64 devices, and the paper", headings, far))
    keep(out, "The paper's result", f"python -m benchmarks.world.result --peers {' '.join(kept)}", parts)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path, help="rows of other sizes that it has stay")
    parser.add_argument("--missing", action="store_true", help="measure only what it has no row of yet")
    arguments = parser.parse_args()
    for peers in arguments.peers:
        asyncio.run(fill(peers, arguments.steps, arguments.out, arguments.missing))
    show("64 devices", *at_64())


async def fill(peers: int, steps: int, out: Path | None, missing: bool) -> None:
    """Measure at one size; each row is kept as soon as it is there."""
    kept = {value["name"]: Row(**value) for value in values(out).get(str(peers), [])}
    async for row in measure(world_of(peers), steps, list(kept.values()) if missing else []):
        kept[row.name] = row
        write(out, values_with(out, str(peers), [vars(row) for row in kept.values()]))
    show("Case 5", HEADINGS, beside_the_papers(list(kept.values())))


if __name__ == "__main__":
    main()
