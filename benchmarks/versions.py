"""Programs of two installed versions: what they do together, what they say where they cannot, and an upgrade under way.

Each version is installed by pip into a folder of its own, and swarms of real processes are started from both on this
machine. The next minor version has something of everything that a minor version may add (see
`tests.harness.later_version`).
"""

import argparse
import asyncio
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.harness.daemon import Daemon
from tests.harness.jobs import TINY
from tests.harness.later_version import ADDITIONS, Installation, install, later
from tests.harness.swarm import Swarm, solo

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show, values, values_with
from dtfm_protocol.process.product_version import product_version

STEPS = 20
UPGRADE_STEPS = 400
SETTLED_STEPS = 15
"""Steps between two restarts of an upgrade."""
TOGETHER = ("coordinator", "nodes", "steps", "largest difference to one process", "lines that say so")
APART = ("case", "who says it", "what is said", "seconds", "exit code")
Part = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""A table: its title, headings and rows."""
UPGRADE = ("restarted", "with", "steps made twice", "longest time between two steps, s", "plans")


@dataclass(frozen=True)
class Versions:
    """The versions that take part."""

    next: Installation
    """A minor version later, with additions."""
    far: Installation
    """Two minor versions later."""


async def installed(folder: Path) -> Versions:
    """Install them."""
    return Versions(
        await install(folder / "next", later(), ADDITIONS), await install(folder / "far", later(2), ADDITIONS)
    )


def _difference(rows: list[dict[str, Any]], reference: list[dict[str, Any]]) -> float:
    """The largest relative difference of losses and norms."""
    assert [row["step"] for row in rows] == [row["step"] for row in reference]
    pairs = [
        (one[key], other[key]) for one, other in zip(rows, reference, strict=True) for key in ("loss", "grad_norm")
    ]
    return float(max(abs(one - other) / abs(other) for one, other in pairs))


async def _serve(swarm: Swarm, version: Installation | None, job: Path, *arguments: object) -> Daemon:
    swarm.coordinator.environment |= version.environment if version else {}
    program = version.program("dtfm-coordinator") if version else ("dtfm-coordinator",)
    return await swarm.serve(job, *arguments, program=program)


async def _join(swarm: Swarm, version: Installation | None) -> Daemon:
    program = version.program("dtfm-node") if version else ("dtfm-node",)
    return await swarm.join(program=program, environment=version.environment if version else {})


async def together(coordinator: Installation | None, *nodes: Installation | None) -> tuple[str, ...]:
    """Train with a coordinator and nodes of these versions (None: the present one); a row of the table."""
    async with Swarm.running(TINY) as swarm:
        job = swarm.job(steps=STEPS)
        both = swarm.plan([[0, 2], [2, 4]], ["ab"] * 8)
        served = await _serve(swarm, coordinator, job, "--plan", both, "--min-nodes", len(nodes), "--exit-when-done")
        joined = [await _join(swarm, version) for version in nodes]
        codes = [await served.exit_code(), *[await node.exit_code() for node in joined]]
        assert codes == [0] * len(codes), served.said()
        rows, told = swarm.rows(), sum(one.said().count(": they work together") for one in (served, *joined))
        difference = _difference(rows, await solo(swarm.folder, job))
        return _of(coordinator), ", ".join(map(_of, nodes)), str(len(rows)), f"{difference:.1g}", str(told)


def _of(version: Installation | None) -> str:
    return version.version if version else product_version()


def _line(daemon: Daemon, words: str) -> str:
    """The line with these words, without its time."""
    said = next((line for line in daemon.said().splitlines() if words in line), "nothing")
    return re.sub(r"\s+", " ", re.sub(r"^[0-9:]{8} ", "", said)).replace("|", "/")


async def _told(
    case: str, who: str, words: str, daemon: Daemon, begun: float, swarm: Swarm, *, ends: bool
) -> tuple[str, ...]:
    """Wait until something is said; a row of the table."""
    await swarm.until(lambda: words in daemon.said(), f"it says {words!r}")
    seconds = time.monotonic() - begun
    code = str(await daemon.exit_code()) if ends else "goes on"
    return case, who, _line(daemon, words), f"{seconds:.1f}", code


async def apart(versions: Versions) -> AsyncIterator[tuple[str, ...]]:
    """Have versions meet that do not work together."""
    for case, coordinator, node in (
        ("newcomer two minor versions older", versions.far, None),
        ("newcomer two minor versions newer", None, versions.far),
    ):
        async with Swarm.running(TINY) as swarm:
            served = await _serve(swarm, coordinator, swarm.job(1000), "--min-nodes", "1")
            begun = time.monotonic()
            joined = await _join(swarm, node)
            yield await _told(case, "node", "error: ", joined, begun, swarm, ends=True)
            yield await _told(case, "coordinator", "is left out", served, begun, swarm, ends=False)
    async with Swarm.running(TINY) as swarm:
        case = "coordinator upgraded by two minor versions while a node trains"
        swarm.slow_down()
        served = await _serve(swarm, None, swarm.job(5000), "--min-nodes", "1")
        joined = await _join(swarm, None)
        await swarm.until(lambda: swarm.step > 3, "the node trains")
        await _restart(served, versions.far, "dtfm-coordinator")
        begun = time.monotonic()
        yield await _told(case, "node", "error: ", joined, begun, swarm, ends=True)
    async with Swarm.running(TINY) as swarm:
        case = "job that needs a key which the node does not know"
        job = swarm.job(1000)
        job.write_text(job.read_text().replace("seed = 1", "seed = 1\nnoise = 0.5"))
        await _serve(swarm, versions.next, job, "--min-nodes", "1")
        begun = time.monotonic()
        joined = await _join(swarm, None)
        yield await _told(case, "node", "error: ", joined, begun, swarm, ends=True)


async def _restart(daemon: Daemon, version: Installation, script: str) -> None:
    """End a program as its person would, and start it from another version with the same arguments."""
    daemon.signal(signal.SIGTERM)
    await daemon.exit_code()
    daemon.arguments = (*version.program(script), *daemon.arguments[1:])
    daemon.environment |= version.environment
    await daemon.start()


async def upgrade(version: Installation) -> tuple[list[tuple[str, ...]], float]:
    """Restart three nodes and their coordinator one after the other while they train; rows of the table, and the
    largest relative difference to one process."""
    async with Swarm.running(TINY) as swarm:
        swarm.slow_down()
        job, rows = swarm.job(steps=UPGRADE_STEPS, checkpoint=50), list[tuple[str, ...]]()
        served = await _serve(swarm, None, job, "--min-nodes", "3", "--exit-when-done")
        nodes = [await _join(swarm, None) for _ in range(3)]
        for daemon, script in (*((node, "dtfm-node") for node in nodes), (served, "dtfm-coordinator")):
            await _settled(swarm, len(nodes))
            before, events = swarm.step, len(swarm.events())
            await _restart(daemon, version, script)
            await _settled(swarm, len(nodes))
            since = [row for row in swarm.rows() if row["step"] >= before]
            pause = max(b["at"] - a["at"] for a, b in pairwise(since))
            new = swarm.events()[events:]
            twice = sum(event.repeated for event in new)
            rows.append((daemon.name, version.version, str(twice), f"{pause:.1f}", "; ".join(one.why for one in new)))
            _say(rows[-1])
        assert await served.exit_code() == 0, served.said()
        assert [await node.exit_code() for node in nodes] == [0] * len(nodes)
        members = swarm.status()["overview"]["members"]
        assert {one["version"] for one in members.values()} == {version.version}, json.dumps(members)
        return rows, _difference(swarm.rows(), await solo(swarm.folder, job))


async def _settled(swarm: Swarm, nodes: int) -> None:
    """Wait until all nodes are heard of, and some more steps are made."""
    heard = lambda: sum(bool(state) for state in swarm.statuses().values()) >= nodes  # noqa: E731
    await swarm.until(heard, "all nodes are there")
    reached = swarm.step
    await swarm.until(lambda: swarm.step > reached + SETTLED_STEPS, "they train")


async def together_all(versions: Versions) -> Part:
    """Have both versions train together, in both directions."""
    rows = []
    for coordinator, nodes in (
        (None, (None, versions.next)), (versions.next, (None, versions.next)),
        (versions.next, (None, None)), (None, (versions.next, versions.next)),
    ):  # fmt: skip
        rows.append(await together(coordinator, *nodes))
        _say(rows[-1])
    return "Together", TOGETHER, rows


async def apart_all(versions: Versions) -> Part:
    """Have versions meet that do not work together."""
    rows = []
    async for row in apart(versions):
        rows.append(row)
        _say(row)
    return "Too far apart", APART, rows


async def upgrade_all(versions: Versions) -> Part:
    """Upgrade a swarm while it trains."""
    rows, difference = await upgrade(versions.next)
    title = (
        f"From {product_version()} to {versions.next.version} while it trains ({UPGRADE_STEPS} steps; largest "
        f"difference to one process {difference:.1g})"
    )
    return title, UPGRADE, rows


PARTS: dict[str, Callable[[Versions], Awaitable[Part]]] = {
    "together": together_all,
    "apart": apart_all,
    "upgrade": upgrade_all,
}


def _say(cells: Sequence[str]) -> None:
    print(*cells, sep="\n  ", file=sys.stderr, flush=True)


async def made(names: Sequence[str], out: Path | None) -> dict[str, Any]:
    """Make the parts that are asked for, and return all that there are by now."""
    kept = values(out)
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        versions = await installed(Path(folder))
        for name in names:
            where, part = machine(), await PARTS[name](versions)
            show(*part)
            kept = values_with(out, name, [where, *part])
    return kept


def main() -> None:
    """Make the tables, and print or keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="The others are taken from the file beside --out.")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = asyncio.run(made([asked.only] if asked.only else list(PARTS), asked.out))
    written = [
        f"{markdown(title, headings, rows)}\n{where}.\n"
        for where, title, headings, rows in (found[name] for name in PARTS if name in found)
    ]
    keep(asked.out, "Two versions in one swarm", "python -m benchmarks.versions", written)


if __name__ == "__main__":
    main()
