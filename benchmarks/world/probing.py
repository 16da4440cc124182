"""What probing finds against what is there: latency and throughput of every ordered pair, bytes and seconds spent.

    python -m benchmarks.world.probing [--out benchmarks/results/probing.md]

True latency is one way as asked of the emulator; true throughput is what TCP's full packets carry of the rate.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import keep, markdown, show
from benchmarks.world.paced import Running, World
from benchmarks.world.worlds import home_world, paper_world
from dtfm_coordinator.netlab.accuracy import PAYLOAD
from dtfm_protocol.view import GBIT

HEADINGS = ["world", "pairs", "what", "median error", "95 %", "worst", "worst pair"]


@dataclass(frozen=True)
class Errors:
    """Of one figure over all ordered pairs."""

    world: str
    what: str
    relative: dict[tuple[str, str], float]

    def cells(self) -> list[str]:
        """For a table."""
        values = np.array(list(self.relative.values()))
        size = np.abs(values)
        pair = max(self.relative, key=lambda pair: abs(self.relative[pair]))
        return [
            self.world, str(len(values)), self.what, f"{np.median(size):.1%}", f"{np.percentile(size, 95):.1%}",
            f"{self.relative[pair]:+.1%}", f"{pair[0]} -> {pair[1]}",
        ]  # fmt: skip


async def measure(world: World) -> tuple[list[Errors], str]:
    """Have a swarm gather in a world, and compare its view with it."""
    async with Running.running(world, trains=False) as running:
        swarm, lab = running.swarm, running.lab
        await swarm.until(lambda: running.phase == "probing", 120, "links are measured")
        begun, before = time.monotonic(), await lab.counts()
        await swarm.until(lambda: running.phase != "probing", 900, "all links are measured")
        seconds, after = time.monotonic() - begun, await lab.counts()
        await swarm.until(lambda: (swarm.coordinator.folder / "view.json").exists(), 60, "there is a view")
        probed = running.probed
    spent = sum(after.bytes.values()) - sum(before.bytes.values())
    names, wiring = world.view.ids, world.wiring()
    latency, throughput = {}, {}
    for i, here in enumerate(names):
        for j, there in enumerate(names):
            if i != j:
                # One way is taken as half the round trip, which is what a clock at one end can know.
                latency[here, there] = probed.latency_ms[i, j] / (wiring.round_trip(i, j) / 2 * 1e3) - 1
                true = wiring.path_rate(i, j) * PAYLOAD
                throughput[here, there] = probed.bandwidth_gbps[i, j] * GBIT / true - 1
    text = f"{spent / 1e6:.1f} MB in {seconds:.0f} s, {after.late_most * 1e3:.1f} ms late at most"
    return [Errors(world.name, "latency", latency), Errors(world.name, "throughput", throughput)], text


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    said = []
    for world in (paper_world(5), home_world()):
        errors, text = asyncio.run(measure(world))
        rows += [one.cells() for one in errors]
        said.append(f"- {world.said}: {text}\n")
    show("Probing", HEADINGS, rows)
    print("".join(said))
    keep(arguments.out, "Probing", "python -m benchmarks.world.probing", [markdown("Errors", HEADINGS, rows), *said])


if __name__ == "__main__":
    main()
