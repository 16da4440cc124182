"""How long does a volunteer wait from `dtfm-node join` until its machine trains?

    python -m benchmarks.joining [--nodes 2 4 10] [--runs 3] [--out benchmarks/results/joining.md]

A coordinator serves the demo's job on this machine and wants so many nodes. All but one have joined, have measured
their links, and wait; then the last one is started as people start it, from nothing. Seconds are from that command on,
medians of the runs.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track
from tests.harness.daemon import Daemon
from tests.harness.swarm import Swarm

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.errors import UserError

JOB = Path(__file__).parents[1] / "examples" / "demo.toml"
DEADLINE = 240.0
HEADINGS = (
    "nodes", "first line", "has entered", "device measured", "links measured", "has its part", "first step",
    "first step at most",
)  # fmt: skip
MARKS: tuple[dict[str, str], ...] = (
    {}, {"state": "measuring"}, {"state": "idle"}, {"phase": "planning"}, {"state": "starting"},
)  # fmt: skip
"""What a node says, as JSON has it, at all of HEADINGS but the last two."""


async def run(nodes: int) -> list[float]:
    """Have the last of so many nodes join, and return when each of the marks in HEADINGS was reached, in seconds since
    its start."""
    async with Swarm.running() as swarm:
        await swarm.serve(JOB, "--min-nodes", nodes)
        for _ in range(nodes - 1):
            await swarm.join()
        waited = "waiting", f"waiting for 1 more nodes ({nodes - 1} of {nodes} are ready)"
        await swarm.until(lambda: said_by(swarm) == waited, "the others are ready", DEADLINE)
        begun = time.time()
        last = await swarm.join("--log-format", "json")
        await swarm.until(lambda: swarm.step >= 1, "the first step is done", DEADLINE)
        return [at - begun for at in (*marks_of(last, MARKS), float(swarm.rows()[0]["at"]))]


def said_by(swarm: Swarm) -> tuple[str, str]:
    """Return what the coordinator says that it does."""
    status = swarm.status()
    return str(status["phase"]), str(status.get("text"))


def marks_of(node: Daemon, wanted: Sequence[dict[str, str]]) -> Iterator[float]:
    """Yield when the node said first what each mark holds, by the clock.

    Raises:
        UserError: it never did.
    """
    lines: list[dict[str, Any]] = [json.loads(line) for line in node.said().splitlines() if line.startswith("{")]
    for fields in wanted:
        at = next((line["at"] for line in lines if fields.items() <= line.items()), None)
        if at is None:
            raise UserError(f"the node never said {fields}:\n{node.tail()}")
        yield at


def row(nodes: int, runs: list[list[float]]) -> tuple[str, ...]:
    """Return a row under HEADINGS."""
    marks = [f"{median(seconds):.1f}" for seconds in zip(*runs, strict=True)]
    return str(nodes), *marks, f"{max(seconds[-1] for seconds in runs):.1f}"


def main() -> None:
    """Run it, and show and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 10])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    here, rows = machine(), []
    for nodes in options.nodes:
        runs = [asyncio.run(run(nodes)) for _ in track(range(options.runs), f"{nodes} nodes", transient=True)]
        rows.append(row(nodes, runs))
    title = "Seconds from `dtfm-node join` to the first step"
    show(title, HEADINGS, rows)
    command = f"python -m benchmarks.joining --nodes {' '.join(map(str, options.nodes))} --runs {options.runs}"
    keep(options.out, "Joining", command, [f"Machine: {here}.\n", markdown(title, HEADINGS, rows)])


if __name__ == "__main__":
    main()
