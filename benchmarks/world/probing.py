"""What probing finds against what is there: latency and throughput of every ordered pair, bytes and seconds spent.

    python -m benchmarks.world.probing [--worlds 5 home]

benchmarks.world.prediction does the same before it predicts anything, and keeps it.

True latency is one way as asked of the emulator; true throughput is what TCP's full packets carry of the rate.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.tables import show
from benchmarks.world.paced import Running, World
from benchmarks.world.worlds import chosen
from dtfm_lab.emulation.accuracy import PAYLOAD
from dtfm_protocol.view.view import GBIT

WORST = 8
"""Pairs that are printed."""
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


async def measure(running: Running) -> tuple[list[Errors], str]:
    """Have a swarm gather in its world, and compare its view with it."""
    world, swarm, lab = running.world, running.swarm, running.lab
    await swarm.until(lambda: running.phase == "probing", "links are measured", 120)
    begun, before = time.monotonic(), await lab.counts()
    await swarm.until(lambda: running.phase != "probing", "all links are measured", 900)
    seconds, after = time.monotonic() - begun, await lab.counts()
    await swarm.until(lambda: (swarm.coordinator.folder / "view.json").exists(), "there is a view", 60)
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
    text = f"{world.name}: {spent / 1e6:.1f} MB in {seconds:.0f} s, {after.late_most * 1e3:.1f} ms late at most"
    return [Errors(world.name, "latency", latency), Errors(world.name, "throughput", throughput)], text


async def alone(world: World) -> tuple[list[Errors], str]:
    """A swarm that does no more than that."""
    async with Running.running(world, trains=False) as running:
        return await measure(running)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["5", "home"])
    arguments = parser.parse_args()
    rows: list[list[str]] = []
    for name in arguments.worlds:
        errors, text = asyncio.run(alone(chosen(name)))
        rows += [one.cells() for one in errors]
        for one in errors:
            for pair, off in sorted(one.relative.items(), key=lambda item: -abs(item[1]))[:WORST]:
                print(f"{one.what}: {pair[0]} -> {pair[1]} {off:+.1%}")
        print(text, flush=True)
    show("Probing", HEADINGS, rows)


if __name__ == "__main__":
    main()
