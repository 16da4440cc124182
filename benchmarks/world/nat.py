"""Volunteers behind NAT: the curve that their swarm trains to, and what a step takes direct, hole-punched and relayed.

    python -m benchmarks.world.nat [--steps 60] [--out benchmarks/results/nat.md]

Three stages of one peer each, in network namespaces behind real NAT routers; links have no delay and no limit, so the
differences are what the ways themselves cost. Direct peers stand beside the coordinator, in the open.
"""

import argparse
import asyncio
import statistics
from collections import Counter
from pathlib import Path

from tests.harness.swarm import Swarm, solo
from tests.lab.homes import Homes, Kind, why_not

from benchmarks.tables import keep, markdown, show
from dtfm_protocol.view.view import View

STAGES, ROUTES = [[0, 1], [1, 2], [2, 4]], ["abc"] * 8
WARM = 10
CASES: dict[str, tuple[Kind, ...]] = {
    "in the open": (),
    "behind routers that keep ports": ("cone",) * 3,
    "behind routers that change ports": ("symmetric",) * 3,
}
HEADINGS = ["volunteers", "ways of the pairs", "ms a step, median", "loss beside one process's", "steps"]


async def measure(name: str, kinds: tuple[Kind, ...], steps: int) -> list[str]:
    """One swarm."""
    with Homes(*kinds) as homes:
        async with Swarm.running() as swarm:
            swarm.coordinator.within = tuple(homes.open.command())
            options = ("--announce", homes.open.address, "--plan", swarm.plan(STAGES, ROUTES), "--min-nodes", 3)
            job = swarm.job(steps, checkpoint=0, shadow=1000000)
            await swarm.serve(job, *options, "--exit-when-done", listen="0.0.0.0")
            for host in homes.inside or (homes.open,) * 3:
                await swarm.join(within=tuple(host.command()))
            await swarm.until(lambda: not swarm.coordinator.alive, "the run ends", 600)
            rows = swarm.rows()
            view = View.load(swarm.coordinator.folder / "view.json")
            reference = await solo(swarm.folder, job)
    assert len(rows) == len(reference) == steps
    off = max(abs(row["loss"] - one["loss"]) / one["loss"] for row, one in zip(rows, reference, strict=True))
    ways = Counter(view.way(here, there) for here in view.ids for there in view.ids if here != there)
    said = ", ".join(f"{count} {way}" for way, count in sorted(ways.items()))
    step = statistics.median(row["seconds"] for row in rows[WARM:])
    return [name, said, f"{step * 1e3:.0f}", f"{off:.1e}", str(steps)]


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"no homes on this machine: {reason}")
    rows = []
    for name, kinds in CASES.items():
        rows.append(asyncio.run(measure(name, kinds, arguments.steps)))
        print(*rows[-1], sep="  ", flush=True)
    show("Behind NAT", HEADINGS, rows)
    command = f"python -m benchmarks.world.nat --steps {arguments.steps}"
    keep(arguments.out, "Volunteers behind NAT", command, [markdown("Three stages of one peer", HEADINGS, rows)])


if __name__ == "__main__":
    main()
