"""Faults of every kind at every point of the protocol: does the run go on, at what price, and is its curve the same?

    python -m benchmarks.chaos [--only lone] [--short] [--seed 0] [--out benchmarks/results/chaos.md]

Two long runs of real processes, in which one thing after the other happens, in an order drawn from the seed: one with a
single peer a stage, one with two. Then what happens to machines rather than to a protocol. Seconds are those from the
fault until the coordinator has recorded a new step; peers report once a second, so up to one of them is the telling.
"""

import argparse
import asyncio
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.harness.swarm import Swarm, solo

from benchmarks.chaos.campaign import LONE, REPLICATED, Layout, Outcome, difference, run
from benchmarks.chaos.cases import Case, lone_stages, replicated_stages
from benchmarks.chaos.singles import SINGLES
from benchmarks.tables import keep, markdown, show

STEPS_A_CASE = 130
COMPARED_STEPS = 1000
SHORT_CASES = 3
HEADINGS = ["what", "who", "seconds", "new plans", "steps run again", "from", "MB moved"]
PARTS: dict[str, tuple[Layout, Sequence[Case]]] = {
    "lone": (LONE, lone_stages()),
    "replicated": (REPLICATED, replicated_stages()),
}


async def campaign(layout: Layout, cases: Sequence[Case]) -> tuple[list[Outcome], str]:
    """What every case did, and how far the curve was off, in a line."""
    steps = STEPS_A_CASE * (len(cases) + 1)
    async with Swarm.running() as swarm:
        outcomes = await run(swarm, layout, cases, steps)
        rows = swarm.rows()
        reference = await solo(swarm.folder, swarm.folder / "job.toml")
    calm = await undisturbed(layout, steps)
    compared = min(COMPARED_STEPS, steps)
    first, some, every = (difference(rows, reference, 1, end) for end in (20, compared, steps))
    calm_first, calm_some = (difference(calm, reference, 1, end) for end in (20, compared))
    lost = f" The metrics of {steps - len(rows)} steps were lost with all who knew them." if len(rows) < steps else ""
    return outcomes, (
        f"Loss beside one process's: {first:.1e} over 20 steps, {some:.1e} over {compared:,}, {every:.1e} over all "
        f"{steps:,}; of an undisturbed swarm of the same shapes: {calm_first:.1e} over 20, {calm_some:.1e} over "
        f"{compared:,}.{lost}"
    )


async def undisturbed(layout: Layout, steps: int) -> list[dict[str, object]]:
    """The first rows of the same run, if nothing happens."""
    async with Swarm.running() as swarm:
        peers = len(set("".join(layout.routes)))
        await swarm.serve(
            swarm.job(steps, checkpoint=20), "--plan", swarm.plan(layout.stages, layout.routes), "--min-nodes", peers
        )
        for _ in range(peers):
            await swarm.join()
        wanted = min(COMPARED_STEPS, steps)
        await swarm.until(lambda: swarm.step >= wanted, f"{wanted} steps are done", 1200)
        swarm.coordinator.signal(signal.SIGKILL)
        return swarm.rows()[:wanted]


def _row(outcome: Outcome) -> list[str]:
    return [
        outcome.case.name,
        outcome.case.victim,
        f"{outcome.seconds:.1f}",
        str(outcome.plans),
        str(outcome.repeated),
        outcome.source,
        f"{outcome.moved_bytes / 1e6:.1f}",
    ]


async def machines() -> list[list[str]]:
    """What happens to machines."""
    rows = []
    for name, happen in SINGLES.items():
        async with Swarm.running() as swarm:
            rows.append([name, await happen(swarm)])
            print(*rows[-1], sep=": ", flush=True)
    return rows


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*PARTS, "machines"])
    parser.add_argument("--short", action="store_true", help=f"{SHORT_CASES} cases of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts = []
    for name, (layout, cases) in PARTS.items():
        if arguments.only not in (None, name):
            continue
        order = random.Random(arguments.seed).sample(list(cases), SHORT_CASES if arguments.short else len(cases))
        outcomes, curve = asyncio.run(campaign(layout, order))
        rows = [_row(outcome) for outcome in sorted(outcomes, key=lambda outcome: list(cases).index(outcome.case))]
        broken = [outcome.seconds for outcome in outcomes if outcome.case.breaks]
        summary = f"Seconds: median {median(broken):.1f}, most {max(broken):.1f}. {curve}\n"
        show(layout.name, HEADINGS, rows)
        print(summary)
        parts += [markdown(layout.name, HEADINGS, rows), summary]
    if arguments.only in (None, "machines"):
        rows = asyncio.run(machines())
        parts.append(markdown("Machines", ["what", "what came of it"], rows))
    command = "python -m benchmarks.chaos" + (f" --only {arguments.only}" if arguments.only else "")
    keep(arguments.out, "Faults", f"{command} --seed {arguments.seed}", parts)


if __name__ == "__main__":
    main()
