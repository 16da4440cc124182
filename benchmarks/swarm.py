"""A swarm of real processes on this machine, to which anything may be done."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dtfm_coordinator.history import Event, read
from dtfm_protocol.children import end_with_parent

BIN = Path(sys.executable).parent
JOB = """
name = "chaos"
[model]
architecture = "llama"
hidden_size = 64
intermediate_size = 172
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = {tied}
[data]
text = "cpython"
[training]
steps = {steps}
global_batch = 8
micro_batch = 1
sequence_length = 64
learning_rate = 1e-3
warmup_steps = 3
seed = 1
[evaluation]
every = 10
sequences = 4
[checkpoint]
every = {checkpoint}
shadow = {shadow}
"""


@dataclass
class Daemon:
    """A process of the swarm, which may be started several times."""

    name: str
    arguments: tuple[str, ...]
    folder: Path
    process: asyncio.subprocess.Process | None = None
    peer: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    """What it is started by, e.g. `ip netns exec NAME`."""

    @property
    def fault_file(self) -> Path:
        """Where a fault is written for it."""
        return self.folder.with_name(f"{self.name}.fault")

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start it, or start it again."""
        self.fault_file.write_text("", encoding="ascii")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "DTFM_FAULT_FILE": str(self.fault_file)} | self.environment
        with self.folder.with_name(f"{self.name}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.within, str(BIN / self.arguments[0]), *self.arguments[1:],
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGKILL),
            )  # fmt: skip

    def arm(self, fault: str) -> None:
        """Have something happen at one of the points in its code."""
        temporary = self.fault_file.with_suffix(".new")
        temporary.write_text(fault, encoding="ascii")
        temporary.replace(self.fault_file)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def ended(self, seconds: float) -> int | None:
        """Its exit code, if it ends in time."""
        assert self.process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.process.wait()
        return None

    def said(self) -> str:
        """The end of its log."""
        path = self.folder.with_name(f"{self.name}.log")
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]) if path.exists() else ""


class Swarm:
    """A coordinator and nodes in a folder of their own. Create it with `running`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.coordinator = Daemon("coordinator", (), folder / "coordinator")
        self.nodes: list[Daemon] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls) -> AsyncIterator["Swarm"]:
        """An empty one, of which nothing is left behind."""
        folder = Path(tempfile.mkdtemp(prefix="swarm-"))
        swarm = cls(folder)
        try:
            yield swarm
        finally:
            for daemon in [*swarm.nodes, swarm.coordinator]:
                daemon.signal(signal.SIGCONT)
                daemon.signal(signal.SIGKILL)
                if daemon.process is not None:
                    await daemon.process.wait()
            if os.environ.get("SWARM_KEEP"):
                print("kept:", folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def job(self, steps: int, *, checkpoint: int = 50, shadow: int = 5, tied: bool = True) -> Path:
        """The job file."""
        path = self.folder / "job.toml"
        text = JOB.format(steps=steps, checkpoint=checkpoint, shadow=shadow, tied=str(tied).lower())
        path.write_text(text, encoding="utf-8")
        return path

    def plan(self, stages: list[list[int]], routes: list[str]) -> Path:
        """A forced layout; routes name placeholders by letter, as "ab"."""
        path = self.folder / "layout.json"
        path.write_text(json.dumps({"stages": stages, "routes": [list(route) for route in routes]}), encoding="utf-8")
        return path

    async def serve(self, job: Path, *arguments: object, listen: str = "127.0.0.1") -> None:
        """Start the coordinator, and wait for its invite."""
        invite = self.coordinator.folder / "invite"
        invite.unlink(missing_ok=True)
        self.coordinator.arguments = (
            "dtfm-coordinator", "serve", str(job), "--state-dir", str(self.coordinator.folder),
            "--listen", listen, "--port", "0", *map(str, arguments),
        )  # fmt: skip
        await self.coordinator.start()
        await self.until(invite.exists, 120, "there is an invite")

    async def join(self, *arguments: str, within: tuple[str, ...] = ()) -> Daemon:
        """Start another node."""
        name = f"node-{len(self.nodes)}"
        folder = self.folder / name
        command = (
            "dtfm-node", "join", f"@{self.folder / 'coordinator' / 'invite'}", "--state-dir", str(folder),
            "--device", "cpu", "--threads", "1", "--verbose", *arguments,
        )  # fmt: skip
        node = Daemon(name, command, folder, within=within)
        self.nodes.append(node)
        await node.start()
        return node

    async def until(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        """Wait for something that files tell.

        Raises:
            AssertionError: it did not come; with the ends of all logs.
        """
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {d.name}\n{d.said()}" for d in [self.coordinator, *self.nodes])
                raise AssertionError(f"waited {seconds:.0f} s in vain until {what}\n{logs}")
            await asyncio.sleep(0.02)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics that the coordinator has recorded."""
        path = self.coordinator.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def step(self) -> int:
        """The newest step that the coordinator has recorded."""
        rows = self.rows()
        return int(rows[-1]["step"]) if rows else 0

    def events(self) -> list[Event]:
        """Plans that began."""
        return read(self.coordinator.folder)

    def layout(self) -> dict[str, Any]:
        """The plan in force."""
        path = self.coordinator.folder / "plan.json"
        return dict(json.loads(path.read_text())) if path.exists() else {"version": 0, "routes": [], "stages": []}

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
            log = node.folder.with_name(f"{node.name}.log")
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []:
                if " as 12D3" in line:
                    node.peer = line.rsplit(" as ", 1)[1].strip()
        return node.peer

    def statuses(self) -> dict[str, str]:
        """State of each node that the coordinator sees, by peer id."""
        path = self.coordinator.folder / "status.json"
        if not path.exists():
            return {}
        return {node["id"]: node["state"] or "" for node in json.loads(path.read_text())["nodes"]}

    def resources(self) -> dict[str, tuple[int, int, int]]:
        """Resident bytes, file descriptors and sockets of each living process, its helpers included."""
        found = {}
        for daemon in [self.coordinator, *self.nodes]:
            if daemon.alive and daemon.process is not None:
                with contextlib.suppress(psutil.Error):
                    main = psutil.Process(daemon.process.pid)
                    family = [main, *main.children(recursive=True)]
                    found[daemon.name] = (
                        sum(process.memory_info().rss for process in family),
                        sum(process.num_fds() for process in family),
                        sum(len(process.net_connections()) for process in family),
                    )
        return found


async def solo(folder: Path, job: Path, *, until: int | None = None, state: Path | None = None) -> list[dict[str, Any]]:
    """The metrics of the same job in one process.

    Args:
        until: stop after this step.
        state: state dir, with the checkpoint that it goes on from.
    """
    state = state or folder / "solo"
    metrics = state / "metrics.jsonl"
    process = await asyncio.create_subprocess_exec(
        str(BIN / "dtfm-node"), "solo", str(job), "--state-dir", str(state), "--device", "cpu",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    while process.returncode is None and (until is None or not rows or rows[-1]["step"] < until):
        await asyncio.sleep(0.5)
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
    if process.returncode is None:
        process.kill()
    code = await process.wait()
    if until is None and code:
        raise SystemExit(f"solo ended with {code}")
    rows = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
    return [row for row in rows if until is None or row["step"] <= until]
