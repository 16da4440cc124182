"""What the slow network costs: the best plan on a data centre's links and worldwide, for the same peers and model.

python -m benchmarks.world.slowdown [--micro-batches 16 64] [--steps 4] [--out benchmarks/results/slowdown.md]
"""

import argparse
import asyncio
from pathlib import Path

from benchmarks.tables import keep, markdown, show
from benchmarks.world.paced import FEWEST_STEPS, Running, World, on_true_links
from benchmarks.world.placements import papers, searched
from benchmarks.world.worlds import paper_world

PAPER = {"B1024": (10.08, 43.78), "B4096": (32.98, 104.06)}
"""Seconds on 64 V100s, cases 1 and 5, scheduled, 24 layers."""
STRETCH = 2.0
"""In a data centre eight devices keep two processors so busy that steps wait for them: times are longer."""
HEADINGS = ["plan", "peers", "micro-batches", "data centre s", "worldwide s", "slowdown measured", "simulated"]


def world_of(case: int, micro_batches: int) -> World:
    """Eight peers of one of the paper's networks."""
    return paper_world(case, micro_batches=micro_batches, stretch=STRETCH)


async def measure(micro_batches: int, steps: int) -> list[list[str]]:
    """Both worlds with the same work."""
    kinds = ("the paper's search, 8 stages", "this allocator")
    seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for case in (1, 5):
        world = world_of(case, micro_batches)
        plans = dict(zip(kinds, (papers(world, 8), searched(world, world.small)), strict=True))
        async with Running.running(world, forced=plans[kinds[0]]) as running:
            for kind, plan in plans.items():
                found = await running.measure(plan, steps)
                seconds[kind].append((found.median, on_true_links(world, plan)))
                print(world.said, kind, *seconds[kind][-1], sep="  ", flush=True)
    return [
        [
            kind, "8", str(micro_batches), f"{near[0]:.2f}", f"{far[0]:.2f}", f"{far[0] / near[0]:.2f}",
            f"{far[1] / near[1]:.2f}",
        ]
        for kind, (near, far) in seconds.items()
    ]  # fmt: skip


def write(out: Path | None, rows: list[list[str]], steps: int) -> None:
    """Keep what was measured so far, beside the paper's."""
    world, sizes = world_of(5, 16), dict.fromkeys(row[2] for row in rows)
    beside = [
        [f"the paper, {batch}", "64", "", f"{near}", f"{far}", f"{far / near:.2f}", ""]
        for batch, (near, far) in PAPER.items()
    ]
    said = (
        f"Cases 1 and 5: {len(world.view.nodes)} paced peers, {world.layers} layers; bytes / {world.shrink:g}, all "
        f"times x {world.stretch:g}. Medians of {FEWEST_STEPS} to {steps} steps; simulated on the links as asked for.\n"
    )
    command = f"python -m benchmarks.world.slowdown --micro-batches {' '.join(sizes)} --steps {steps}"
    keep(out, "Slowdown", command, [said, markdown("Seconds", HEADINGS, rows + beside)])


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    for micro_batches in arguments.micro_batches:
        rows += asyncio.run(measure(micro_batches, arguments.steps))
        write(arguments.out, rows, arguments.steps)
    show("Slowdown against a data centre", HEADINGS, rows)


if __name__ == "__main__":
    main()
