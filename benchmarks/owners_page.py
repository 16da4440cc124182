"""What the owner's page costs the coordinator, and how far behind it is: with none, one and ten who look.

`python -m benchmarks.owners_page --out FILE` keeps the table. The product's own message handlers, watch over the plan,
status file and page server run in this process, with made-up members that each report a step once a second; who looks
is another process. What opening their envelopes takes comes on top: it is measured by itself.
CPU is this process's own, per second; "status alone" is without a page. A viewer is behind by the time from the moment
at which the coordinator has recorded a step to that at which the viewer has read it.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gzip
import itertools
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from tests.coordinator.peers import Peers, row
from tests.harness.page_visitor import PageVisitor, read_head

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.leader.plan_watch import PlanWatch
from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.serve.web.page_address import PageAddress, PageOptions
from dtfm_coordinator.serve.web.page_assets import load_assets
from dtfm_coordinator.serve.web.page_server import PageServer
from dtfm_protocol.control.messages import REPORT, Report
from dtfm_protocol.discovery.records import Limits, Link, LinkReport, Profile
from dtfm_protocol.identity.envelope import Post, read_body
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process import command_line
from dtfm_protocol.view.view import LayerSeconds

STAGES, LAYERS, SPARES = 4, 8, 2
HISTORY = 2000
"""Steps that are recorded before the measurement."""
LOOK_SECONDS = 0.5
"""How often the coordinator writes its status."""
HEADINGS = ("members", "viewers", "CPU of a core", "behind, median", "behind, worst", "first overview", "a second then")


async def swarm_of(folder: Path, members: int) -> tuple[Peers, StatusFile]:
    """A coordinator that hears so many members train."""
    peers = Peers(folder)
    job = peers.context.job
    training = job.training.model_copy(update={"steps": 10**6})
    peers.context = dataclasses.replace(peers.context, job=job.model_copy(update={"training": training}))
    peers.recorder._steps = lambda: 10**6
    names = [f"12D3KooW{number:044d}" for number in range(members)]
    for name in names:
        peers.records.listed[name] = Profile(
            device="cuda:0 NVIDIA GeForce RTX 3060",
            flops={"fp32": 1e13},
            layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
            memory_bytes=12e9,
            addresses=(f"/ip4/192.0.2.1/tcp/7701/p2p/{name}",),
            version="0.1.0",
            session="one",
        )
    peers.state.members.listed(peers.records.listed)
    for name in names:
        await peers.hello(name)
        await peers.report(name)
    lines = (members - SPARES) // STAGES
    routes = tuple(tuple(names[line * STAGES : (line + 1) * STAGES]) for line in range(lines))
    stages = tuple((stage * LAYERS // STAGES, (stage + 1) * LAYERS // STAGES) for stage in range(STAGES))
    plan = Plan(version=1, stages=stages, routes=routes, idle=tuple(names[lines * STAGES :]))
    for route in routes:
        for sender, receiver in itertools.pairwise(route):
            link = Link(round_trip_ms=40.0, sent_gbps=0.02, received_gbps=0.02)
            peers.state.links.reported(sender, LinkReport(links={receiver: link}))
    peers.state.plan = plan
    append_shares(folder, plan, peers.rows)
    for step in range(1, HISTORY + 1):
        peers.rows.append(row(step).model_copy(update={"loss": 2 + 5 * math.exp(-step / 300)}))
    await peers.announcer.say("training", "plan 1")
    return peers, StatusFile(peers.context, peers.state, peers.announcer, peers.rows)


async def watch_plan(peers: Peers) -> None:
    """Look for a reason for another plan whenever something was heard, as the controller does; there is none."""
    plan, planner = peers.state.plan, peers.context.planner
    assert plan is not None
    everybody = [*plan.peers, *plan.idle]
    peers.state.links.tried(list(itertools.combinations(everybody, 2)))
    for peer in everybody:
        peers.state.links.limits.reported(peer, Limits())
    planner.is_forced = planner.is_changed = False  # type: ignore[misc]
    watch = PlanWatch(peers.state, planner)
    await peers.state.wait(lambda: bool(watch.broken(plan) or watch.wish(plan)))
    raise AssertionError(f"there is a reason: {watch.broken(plan) or watch.wish(plan)}")


async def train(peers: Peers, recorded: dict[int, float]) -> None:
    """Have every member report a step each second, spread over it; note when steps were recorded."""
    plan = peers.state.plan
    assert plan is not None
    serving = frozenset(plan.peers)
    everybody = [*plan.peers, *plan.idle]
    step, due = HISTORY, time.monotonic()
    while True:
        step += 1
        for number, peer in enumerate(everybody):
            due += 1.0 / len(everybody)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            state = "training" if peer in serving else "idle"
            rows = (row(step),) if number == 0 else ()
            await peers.report(peer, state, plan_version=1, step=step, rows=rows)
            if number == 0:
                recorded[step] = time.time()


async def watch(status: StatusFile) -> None:
    """Write the status as the coordinator does."""
    while True:
        status.write()
        await asyncio.sleep(LOOK_SECONDS)


async def measure(members: int, viewers: int | None, seconds: float) -> tuple[str, ...]:
    """One row under `HEADINGS`; `viewers` None: without a page."""
    with tempfile.TemporaryDirectory() as name:
        peers, status = await swarm_of(Path(name), members)
        recorded: dict[int, float] = {}
        with contextlib.ExitStack() as stack:
            working = [asyncio.create_task(one) for one in (train(peers, recorded), watch(status), watch_plan(peers))]
            looking = None
            if viewers is not None:
                options = PageOptions(PageAddress("127.0.0.1", 0))
                server = stack.enter_context(PageServer(options, status.feed, Path(name)))
                working.append(asyncio.create_task(server.run()))
                if viewers:
                    port = server.url.rsplit(":", 1)[1].strip("/")
                    looking = await asyncio.create_subprocess_exec(
                        sys.executable, "-m", "benchmarks.owners_page", "--look", port, "--viewers", str(viewers),
                        "--seconds", str(seconds + 3), stdout=asyncio.subprocess.PIPE,
                    )  # fmt: skip
                    while status.feed.viewers < viewers:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            await asyncio.sleep(2)
            begun = time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            share = (time.process_time() - begun[0]) / (time.monotonic() - begun[1])
            found = json.loads((await looking.communicate())[0]) if looking else None
            for task in working:
                task.cancel()
            ends = await asyncio.gather(*working, return_exceptions=True)
            assert not any(isinstance(end, AssertionError) for end in ends), ends
    shown = (str(members), "status alone" if viewers is None else str(viewers), f"{100 * share:.1f} %")
    if found is None:
        return (*shown, "", "", "", "")
    behind = [at - recorded[int(step)] for one in found for step, at in one["seen"] if int(step) in recorded]
    first, later = (median(one[what] for one in found) for what in ("first", "later"))
    return (
        *shown,
        f"{median(behind):.2f} s",
        f"{max(behind):.2f} s",
        f"{first / 1000:.1f} kB",
        f"{later / 1000:.2f} kB",
    )


async def look(port: int, viewers: int, seconds: float) -> None:
    """Look on as so many viewers, and print when each has seen which step, and what it has read."""

    async def one() -> dict[str, object]:
        reader, writer = await PageVisitor(port).open()
        writer.write(f"GET /api/events HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        await read_head(reader)
        seen, sizes, begun = list[tuple[int, float]](), list[int](), time.monotonic()
        while time.monotonic() - begun < seconds:
            line = await reader.readline()
            if line.startswith(b"data:"):
                at = time.time()
                step = json.loads(line[6:]).get("progress", {}).get("step")
                sizes.append(len(line))
                if step is not None and len(sizes) > 2:
                    seen.append((step, at))
        writer.close()
        return {"seen": seen, "first": sizes[0], "later": sum(sizes[1:]) / seconds}

    print(json.dumps(await asyncio.gather(*(one() for _ in range(viewers)))))


def opening(count: int = 1000) -> str:
    """What it takes to check and open the envelopes of reports, as a line."""
    post = Post("0123456789abcdef", Identity.generate())
    sealed = [post.seal(REPORT.name, Report(session="one", state="training", plan_version=1)) for _ in range(count)]
    begun = time.process_time()
    for data in sealed:
        read_body(post.open(data, REPORT.name), Report)
    took = (time.process_time() - begun) / count
    return f"To check and open a report's envelope takes {1e6 * took:.0f} microseconds of a core on top.\n"


def assets() -> str:
    """What a browser loads once, as a line."""
    files = load_assets().values()
    whole, small = sum(len(one.data) for one in files), sum(len(one.compressed) for one in files)
    return f"The page's {len(files)} files have {whole / 1000:.1f} kB, {small / 1000:.1f} kB as they are sent.\n"


async def curves() -> str:
    """What the curves of a long run come to, as a line."""
    with tempfile.TemporaryDirectory() as name:
        peers, status = await swarm_of(Path(name), 10)
        status.write()
        points = [[round(value, 6) if value else value for value in point] for point in status.feed.history.curve]
        data = json.dumps(points).encode()
        del peers
    return (
        f"The curves of {HISTORY} steps have {len(points)} points, about {len(data) / 1000:.0f} kB "
        f"({len(gzip.compress(data)) / 1000:.0f} kB as they are sent) once, and then what has come since.\n"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="*", default=[50, 500], help="members of the made-up swarm")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each measurement")
    parser.add_argument("--status-alone", action="store_true", help="measure without a page only")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--viewers", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with command_line.guarded():
        if options.look is not None:
            asyncio.run(look(options.look, options.viewers, options.seconds))
            return
        facts = machine()
        lines = []
        for members in options.members:
            for viewers in (None,) if options.status_alone else (None, 0, 1, 10):
                lines.append(asyncio.run(measure(members, viewers, options.seconds)))
                Console(stderr=True).print(" | ".join(lines[-1]))
        title = "The page, beside made-up members that report once a second"
        show(title, HEADINGS, lines)
        extra = opening() + "\n" + assets() + "\n" + asyncio.run(curves())
        members = " ".join(map(str, options.members))
        command = f"python -m benchmarks.owners_page --members {members} --seconds {options.seconds:g}"
        keep(
            options.out,
            "What the owner's page costs",
            command,
            [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines), extra],
        )


if __name__ == "__main__":
    main()
