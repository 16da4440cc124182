"""A swarm of real processes on this machine, to which anything may be done, and of which nothing is left."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil

from dtfm_coordinator.records.event_log import PlanEvent, read
from tests.harness.daemon import DEADLINE, Daemon
from tests.harness.jobs import SMALL, Size

ROW_BYTES = 4096
"""More than any row of metrics has."""
LOOK_SECONDS = 0.05


class Swarm:
    """A coordinator, nodes and whatever else runs, in a folder of their own. Create it with `running`."""

    def __init__(self, folder: Path, size: Size = SMALL) -> None:
        self.folder = folder
        self.size = size
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.coordinator = self._daemon("coordinator")
        self.nodes: list[Daemon] = []
        self._pace: tuple[str, ...] = ()
        self._others: list[Daemon] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, size: Size = SMALL) -> AsyncIterator["Swarm"]:
        """An empty one, of which nothing is left behind."""
        # Not pytest's own folder: the path of a Unix socket has at most 108 bytes.
        folder = Path(tempfile.mkdtemp(prefix="swarm-"))
        swarm = cls(folder, size)
        try:
            yield swarm
        finally:
            await swarm._end()
            if os.environ.get("SWARM_KEEP"):
                print("kept:", folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    # -- what it is given ---------------------------------------------------------------------------------------------

    def job(
        self, steps: int | None = None, *, checkpoint: int | None = None, shadow: int | None = None, tied: bool = True
    ) -> Path:
        """The job file."""
        path = self.folder / "job.toml"
        text = self.size.job(steps, checkpoint=checkpoint, shadow=shadow, tied=tied)
        path.write_text(text, encoding="utf-8")
        return path

    def plan(self, stages: list[list[int]], routes: list[str]) -> Path:
        """A forced layout; routes name placeholders by letter, as "ab"."""
        path = self.folder / "layout.json"
        path.write_text(json.dumps({"stages": stages, "routes": [list(route) for route in routes]}), encoding="utf-8")
        return path

    def slow_down(self) -> None:
        """Have nodes that join from now on be slower devices: a run then lasts while things happen to it, and most of
        that is waiting."""
        self._pace = ("--pace", str(self.size.slow))

    # -- processes ----------------------------------------------------------------------------------------------------

    async def serve(
        self,
        job: Path,
        *arguments: object,
        listen: str = "127.0.0.1",
        program: tuple[str, ...] = ("dtfm-coordinator",),
    ) -> Daemon:
        """Start the coordinator, or another one on its state dir, and wait for its invite. Another program may stand in
        for the coordinator's own."""
        invite = self.coordinator.folder / "invite"
        invite.unlink(missing_ok=True)
        self.coordinator.arguments = (
            *program, "serve", str(job), "--state-dir", str(self.coordinator.folder),
            "--listen", listen, "--port", "0", "--verbose", *map(str, arguments),
        )  # fmt: skip
        await self.coordinator.start()
        await self.until(invite.exists, "there is an invite")
        return self.coordinator

    async def join(
        self,
        *arguments: str,
        name: str | None = None,
        within: tuple[str, ...] = (),
        invite: str | None = None,
        environment: dict[str, str] | None = None,
        program: tuple[str, ...] = ("dtfm-node",),
    ) -> Daemon:
        """Start another node, with the coordinator's own invite or another one; its state dir is the swarm's folder and
        its name. Another program may stand in for the node's own."""
        node = self._daemon(name or f"node-{len(self.nodes)}")
        invite = invite or f"@{self.folder / 'coordinator' / 'invite'}"
        node.arguments = (
            *program, "join", "--yes", invite, "--state-dir", str(node.folder),
            "--device", "cpu", "--threads", "1", "--nice", "0", "--verbose", *self._pace, *arguments,
        )  # fmt: skip
        node.within = within
        node.environment |= environment or {}
        self.nodes.append(node)
        await node.start()
        return node

    async def start(self, script: str, *arguments: object) -> Daemon:
        """Start a console script, or a program by its path, that is neither its coordinator nor one of its nodes."""
        other = self._daemon(f"run-{len(self._others)}")
        other.arguments = (script, *map(str, arguments))
        self._others.append(other)
        await other.start()
        return other

    async def run(self, script: str, *arguments: object, seconds: float = DEADLINE) -> tuple[int, str]:
        """Run a console script to its end: exit code and all output."""
        process = await self.start(script, *arguments)
        return await process.exit_code(seconds), process.said()

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
        """Wait for something that files tell.

        Raises:
            AssertionError: it did not come; with the ends of all logs.
        """
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {daemon.name}\n{daemon.tail()}" for daemon in self._all())
                raise AssertionError(f"waited {seconds:.0f} s in vain until {what}\n{logs}")
            await asyncio.sleep(LOOK_SECONDS)

    # -- what its files tell ------------------------------------------------------------------------------------------

    def rows(self, state: str | None = None) -> list[dict[str, Any]]:
        """The metrics that the coordinator, or whoever has that state dir in the swarm's folder, has recorded."""
        path = (self.coordinator.folder if state is None else self.folder / state) / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def step(self) -> int:
        """The newest step that the coordinator has recorded."""
        path = self.coordinator.folder / "metrics.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as file:  # it is asked for all the time: the last whole row is enough
            file.seek(max(0, file.seek(0, os.SEEK_END) - ROW_BYTES))
            rows = file.read().split(b"\n")[:-1]
        return int(json.loads(rows[-1])["step"]) if rows else 0

    def events(self) -> list[PlanEvent]:
        """Plans that began."""
        return read(self.coordinator.folder)

    def layout(self) -> dict[str, Any]:
        """The plan in force."""
        path = self.coordinator.folder / "plan.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"version": 0, "routes": [], "stages": []}

    def checkpoints(self) -> list[int]:
        """The steps whose checkpoints the coordinator keeps."""
        found = (self.coordinator.folder / "checkpoints").glob("step-*/manifest.json")
        return sorted(int(path.parent.name.removeprefix("step-")) for path in found)

    def status(self) -> dict[str, Any]:
        """What the coordinator says of itself and its nodes."""
        path = self.coordinator.folder / "status.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"phase": None, "nodes": []}

    def statuses(self) -> dict[str, str]:
        """State of each node that the coordinator sees, by peer id."""
        return {node["id"]: node["state"] or "" for node in self.status()["nodes"]}

    def serving(self, stage: int) -> list[Daemon]:
        """The living nodes that serve a stage (-1: the last), in the plan's order."""
        peers = list(dict.fromkeys(route[stage] for route in self.layout()["routes"]))
        by_peer = {self.peer_of(node): node for node in self.nodes if node.alive}
        return [by_peer[peer] for peer in peers if peer in by_peer]

    def spares(self) -> list[Daemon]:
        """The living nodes that serve none."""
        busy = {peer for route in self.layout()["routes"] for peer in route}
        return [node for node in self.nodes if node.alive and self.peer_of(node) not in busy]

    def peer_of(self, node: Daemon) -> str:
        """A node's peer id, from its log."""
        if not node.peer:
            for line in node.said().splitlines():
                if " as 12D3" in line:
                    node.peer = line.rsplit(" as ", 1)[1].strip()
        return node.peer

    # -- what it takes and leaves -------------------------------------------------------------------------------------

    def resources(self) -> dict[str, tuple[int, int, int]]:
        """Resident bytes, file descriptors and sockets of each living process, its helpers included."""
        found = {}
        for daemon in [self.coordinator, *self.nodes]:
            if daemon.alive:
                with contextlib.suppress(psutil.Error):
                    main = psutil.Process(daemon.pid)
                    family = [main, *main.children(recursive=True)]
                    found[daemon.name] = (
                        sum(process.memory_info().rss for process in family),
                        sum(process.num_fds() for process in family),
                        sum(len(process.net_connections()) for process in family),
                    )
        return found

    def leftovers(self) -> list[str]:
        """Processes and temporary files that belong to this swarm."""
        # torch keeps a cache folder for its compiler there, whether or not it is used
        found = [str(path) for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        return found

    async def _end(self) -> None:
        """End whatever still runs."""
        for daemon in self._all():
            daemon.signal(signal.SIGCONT)
            daemon.signal(signal.SIGKILL)
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for daemon in self._all():
            if daemon.process is not None:
                await daemon.process.wait()

    def _all(self) -> list[Daemon]:
        return [self.coordinator, *self.nodes, *self._others]

    def _daemon(self, name: str) -> Daemon:
        return Daemon(name, (), self.folder / name, environment={"TMPDIR": str(self.temporary)})

    def _processes(self) -> list[psutil.Process]:
        """All that live and have this swarm's folder for temporary files, whoever has started them."""
        warm = {process for daemon in self._all() for process in daemon.warm}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                own = process in warm or process.environ().get("TMPDIR") == str(self.temporary)
                if own and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


async def solo(folder: Path, job: Path, *, until: int | None = None, state: Path | None = None) -> list[dict[str, Any]]:
    """The metrics of the same job in one process.

    Args:
        until: stop after this step.
        state: state dir, with the checkpoint that it goes on from.

    Raises:
        SystemExit: it ends with an error; with the end of its log.
    """
    state = state or folder / "solo"
    metrics = state / "metrics.jsonl"
    alone = Daemon(state.name, ("dtfm-node", "solo", str(job), "--state-dir", str(state), "--device", "cpu"), state)

    def rows() -> list[dict[str, Any]]:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    await alone.start()
    assert alone.process is not None
    if until is not None:
        while alone.alive and (not rows() or rows()[-1]["step"] < until):  # noqa: ASYNC110 - a file tells it
            await asyncio.sleep(0.5)
        alone.signal(signal.SIGKILL)
    code = await alone.process.wait()
    if until is None and code:
        raise SystemExit(f"solo ended with {code}: {alone.tail()}")
    return [row for row in rows() if until is None or row["step"] <= until]
