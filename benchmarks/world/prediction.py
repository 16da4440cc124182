"""Predicted against measured step times: many placements on several worlds.

    python -m benchmarks.world.prediction [--worlds 3 4 5 home] [--steps 6] [--out benchmarks/results/prediction.md]

One swarm a world, which goes from plan to plan. Predictions are the coordinator's own, on the links that the swarm has
probed, made before the steps were taken.
"""

import argparse
import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.tables import keep, markdown, show
from benchmarks.world import probing
from benchmarks.world.paced import Running, World, on_true_links
from benchmarks.world.placements import adversarial, at_random, in_order, searched
from benchmarks.world.worlds import chosen
from dtfm_protocol.plan import Plan

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


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["3", "4", "5", "home"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[Row] = []
    found: list[list[str]] = []
    made, spent = [], []
    command = f"python -m benchmarks.world.prediction --worlds {' '.join(arguments.worlds)} --steps {arguments.steps}"
    for name in arguments.worlds:
        world = chosen(name)
        made.append(f"- {world.said}\n")
        more, errors, text = asyncio.run(measure(world, arguments.steps))
        rows, found = rows + more, found + errors
        spent.append(f"- {text}\n")
        cells = [row.cells() for row in rows]
        # After each world: this takes an hour.
        parts = [*made, markdown("Seconds a step", HEADINGS, cells), summary(rows)]
        parts += [markdown("Links as the swarm measured them first", probing.HEADINGS, found), "".join(spent)]
        keep(arguments.out, "Prediction", command, parts)
        if arguments.out is not None:
            values = [{**vars(row)} for row in rows]
            arguments.out.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    show("Predicted and measured seconds a step", HEADINGS, cells)
    show("Links as the swarm measured them", probing.HEADINGS, found)
    print(summary(rows))


if __name__ == "__main__":
    main()
