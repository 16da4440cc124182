"""Predicted against measured step times: many placements on several worlds.

    python -m benchmarks.world.prediction [--worlds 3 4 5 home] [--steps 6] [--out benchmarks/results/prediction.md]

One swarm a world, which goes from plan to plan. Predictions are the coordinator's own, on the links that the swarm has
probed, made before the steps were taken.
"""

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.tables import keep, markdown, show, values_with
from benchmarks.world import probing
from benchmarks.world.paced import Running, World, on_true_links
from benchmarks.world.placements import adversarial, at_random, in_order, searched
from benchmarks.world.worlds import chosen
from dtfm_protocol.plan.plan import Plan

HEADINGS = ["world", "placement", "shape", "measured", "spread", "predicted", "off", "on the links as asked for"]


@dataclass(frozen=True)
class Row:
    """One plan, and what its steps took."""

    world: str
    name: str
    shape: str
    measured: float
    spread: float
    predicted: float
    on_true: float

    @property
    def off(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1

    def cells(self) -> list[str]:
        """For a table."""
        return [
            self.world, self.name, self.shape, f"{self.measured:.2f}", f"{self.spread:.1%}", f"{self.predicted:.2f}",
            f"{self.off:+.1%}", f"{self.on_true:.2f}",
        ]  # fmt: skip


def placements(world: World) -> list[tuple[str, Plan]]:
    """What is tried: good, in order, random, adversarial."""
    small = world.small
    return [
        ("allocator's", searched(world, small)),
        ("in order", in_order(world, 8)),
        ("random", at_random(world, 8, 1)),
        ("adversarial", adversarial(world, 8)),
        ("allocator's, 4 stages", searched(world, small, 4)),
        ("in order", in_order(world, 4)),
        ("random", at_random(world, 4, 2)),
        ("in order", in_order(world, 2)),
    ]


async def measure(world: World, steps: int) -> tuple[list[Row], list[list[str]], str]:
    """All placements of one world; what probing found there, for a table and in words."""
    print(world.said, flush=True)
    plans = placements(world)
    rows = []
    async with Running.running(world, forced=plans[0][1], trains=False) as running:
        errors, spent = await probing.measure(running)
        print(*(" ".join(one.cells()) for one in errors), spent, sep="\n", flush=True)
        for name, plan in plans:
            measured = await running.measure(plan, steps)
            cost = measured.plan.cost
            assert cost is not None
            shape = f"{len(plan.stages)} x {max(len(plan.replicas(s)) for s in range(len(plan.stages)))}"
            seconds = np.array(measured.seconds)
            spread = float((np.percentile(seconds, 75) - np.percentile(seconds, 25)) / measured.median)
            row = Row(world.name, name, shape, measured.median, spread, cost.total, on_true_links(world, plan))
            print(*row.cells(), " ".join(f"{s:.2f}" for s in measured.seconds), sep="  ", flush=True)
            rows.append(row)
    return rows, [one.cells() for one in errors], spent


def summary(rows: list[Row]) -> str:
    """Errors and ranks."""
    off = np.array([abs(row.off) for row in rows])
    rank = spearmanr([row.predicted for row in rows], [row.measured for row in rows]).statistic
    worst = max(rows, key=lambda row: abs(row.off))
    return (
        f"{len(rows)} placements: mean absolute error {off.mean():.1%}, median {np.median(off):.1%}, worst "
        f"{worst.off:+.1%} ({worst.world}, {worst.name}); Spearman's rank correlation {rank:.3f}.\n"
    )


def write(out: Path | None, values: dict[str, dict[str, Any]]) -> None:
    """Print and keep the rows of all worlds."""
    rows = [Row(**row) for value in values.values() for row in value["rows"]]
    links = [cells for value in values.values() for cells in value["links"]]
    cells = [row.cells() for row in rows]
    show("Predicted and measured seconds a step", HEADINGS, cells)
    show("Links as the swarm measured them", probing.HEADINGS, links)
    print(summary(rows))
    parts = [
        *(f"- {chosen(name).said}\n" for name in values),
        markdown("Seconds a step", HEADINGS, cells),
        summary(rows),
    ]
    parts.append(markdown("Links as the swarm had measured them", probing.HEADINGS, links))
    parts.append("".join(f"- {value['spent']}\n" for value in values.values()))
    keep(out, "Prediction", f"python -m benchmarks.world.prediction --worlds {' '.join(values)}", parts)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["3", "4", "5", "home"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path, help="rows of other worlds that it has stay")
    arguments = parser.parse_args()
    for name in arguments.worlds:
        rows, found, spent = asyncio.run(measure(chosen(name), arguments.steps))
        value = {"rows": [vars(row) for row in rows], "links": found, "spent": spent}
        write(arguments.out, values_with(arguments.out, name, value))  # after each world: all take an hour


if __name__ == "__main__":
    main()
