"""How true the lab is: delays, rates, and how flows share a line, beside what was asked for; and what bulk both ways
costs with and without pacing.

python -m benchmarks.world.lab [--only links | shares | both] [--out benchmarks/results/lab.md]
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable, Coroutine
from itertools import permutations
from pathlib import Path
from typing import Any

from benchmarks.tables import keep, markdown, show
from dtfm_lab.emulation.accuracy import PAYLOAD, Gauge
from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.wiring import Wiring

LINKS = ((1.0, 1.0), (10.0, 10.0), (50.0, 1.0), (50.0, 100.0), (150.0, 2.0), (5.0, 200.0))
"""One-way milliseconds and Mbit/s."""
SHARED_MBIT = 8.0
PAIRS = ["delay ms", "rate Mbit/s", "round trip ms, asked", "found", "payload Mbit/s, possible", "found", "share"]
SHARES = ["what", "Mbit/s of each, fair", "found"]
FAR = (238.0, 0.668, 594_432)
"""Seoul and London in a world of the benchmarks: one-way milliseconds, Mbit/s; and a part of a stage's gradients."""
PACES, WARM = (0.0, 1.25, 1.1, 1.05), 2
"""Over the link's rate, 0 for none; and times that do not count."""
FURTHER = 2.0
"""All times longer: as in the world of sixteen peers."""
BOTH = ["link", "pace", "seconds, median", "most", "seconds at the link's rate", "packets dropped"]
Links = dict[tuple[int, int], tuple[float, float]]


def wiring(count: int, links: Links, up: dict[int, float] | None = None) -> Wiring:
    """Hosts with links of one-way milliseconds and Mbit/s, and uplinks of Mbit/s; other links have no limit."""
    delay = [[links.get((i, j), (0.0, 0.0))[0] / 1e3 for j in range(count)] for i in range(count)]
    rate = [[links[i, j][1] * 1.25e5 if (i, j) in links else None for j in range(count)] for i in range(count)]
    limits = [(up or {}).get(host) for host in range(count)]
    return Wiring(
        delay=delay, rate=rate, up=[None if one is None else one * 1.25e5 for one in limits], down=[None] * count
    )


async def pairs() -> list[list[str]]:
    """Each kind of link by itself."""
    rows = []
    for milliseconds, rate in LINKS:
        asked = wiring(2, dict.fromkeys(permutations(range(2), 2), (milliseconds, rate)))
        async with EmulatedNetwork.running(asked) as lab:
            gauge = Gauge(lab)
            try:
                found = await gauge.pair(0, 1)
            finally:
                await gauge.close()
        possible = rate * PAYLOAD
        got = found.rate * 8e-6
        rows.append(
            [
                f"{milliseconds:g}", f"{rate:g}", f"{2 * milliseconds:g}", f"{found.round_trip * 1e3:.2f}",
                f"{possible:.3f}", f"{got:.3f}", f"{got / possible:.1%}",
            ]
        )  # fmt: skip
        print(*rows[-1], sep="  ", flush=True)
    return rows


async def shares() -> list[list[str]]:
    """Flows that share an uplink: alike, with unlike delays, and one that has a limit of its own."""
    half = SHARED_MBIT / 2
    cases: dict[str, tuple[Links, tuple[float, float]]] = {
        "two alike": ({(0, 1): (20, 100), (0, 2): (20, 100)}, (half, half)),
        "delays of 5 and 100 ms": ({(0, 1): (5, 100), (0, 2): (100, 100)}, (half, half)),
        "one has 2 Mbit/s of its own": ({(0, 1): (20, 2), (0, 2): (20, 100)}, (2.0, SHARED_MBIT - 2)),
    }
    rows = []
    for name, (links, fair) in cases.items():
        back = {(there, here): (link[0], 100.0) for (here, there), link in links.items()}
        async with EmulatedNetwork.running(wiring(3, links | back, {0: SHARED_MBIT})) as lab:
            gauge = Gauge(lab)
            try:
                found = await gauge.rates([(0, 1), (0, 2)], 6.0)
            finally:
                await gauge.close()
        rows.append(
            [
                f"{SHARED_MBIT:g} Mbit/s uplink: {name}", " / ".join(f"{one * PAYLOAD:.2f}" for one in fair),
                " / ".join(f"{one * 8e-6:.2f}" for one in found),
            ]
        )  # fmt: skip
        print(*rows[-1], sep="  ", flush=True)
    return rows


async def both_ways(stretch: float, paced: float) -> list[str]:
    """All-reduces of a pair half a world apart."""
    milliseconds, rate, size = FAR[0] * stretch, FAR[1] / stretch, int(FAR[2] / stretch)
    asked = wiring(2, dict.fromkeys(permutations(range(2), 2), (milliseconds, rate)))
    pace = str(paced * rate * 1.25e5)
    program = (sys.executable, "-m", "benchmarks.world.both_ways")
    async with EmulatedNetwork.running(asked) as lab:
        serving = await asyncio.create_subprocess_exec(
            *lab.within(0), *program, "serve", str(size), pace, stdout=asyncio.subprocess.PIPE
        )
        assert serving.stdout is not None
        await serving.stdout.readline()  # it listens
        going = await asyncio.create_subprocess_exec(
            *lab.within(1), *program, "go", str(size), pace, lab.address(0), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await going.communicate()
        if going.returncode:
            serving.kill()
        await serving.wait()
        counts = await lab.counts()
    seconds = [float(line) / 2 for line in said.decode().split()][WARM:]
    fair = size / (rate * PAYLOAD * 1.25e5) + milliseconds / 1e3
    row = [
        f"{milliseconds:g} ms, {rate:g} Mbit/s, {size / 1e3:.0f} kB", f"{paced:g} x its rate" if paced else "none",
        f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}",
        f"{fair:.2f}", str(sum(counts.dropped.values())),
    ]  # fmt: skip
    print(*row, sep="  ", flush=True)
    return row


async def both_ways_each() -> list[list[str]]:
    """Unpaced and paced, at the same time."""
    return list(await asyncio.gather(*(both_ways(stretch, paced) for stretch in (1.0, FURTHER) for paced in PACES)))


TABLES: dict[str, tuple[str, list[str], Callable[[], Coroutine[Any, Any, list[list[str]]]]]] = {
    "links": ("One link", PAIRS, pairs),
    "shares": ("Flows that share a line", SHARES, shares),
    "both": (
        "As much each way at once, again and again",
        BOTH,
        both_ways_each,
    ),
}


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TABLES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts = []
    for name, (title, headings, measure) in TABLES.items():
        if arguments.only in (None, name):
            rows = asyncio.run(measure())
            show(title, headings, rows)
            parts.append(markdown(title, headings, rows))
    command = "python -m benchmarks.world.lab" + (f" --only {arguments.only}" if arguments.only else "")
    keep(arguments.out, "The lab's own accuracy", command, parts)


if __name__ == "__main__":
    main()
