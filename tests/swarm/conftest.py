"""Swarms of real processes: started through the console scripts, watched through their files, ended with the test."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

BIN = Path(sys.executable).parent
DEADLINE = float(os.environ.get("SWARM_DEADLINE", "120"))
"""Seconds for any one wait: generous, because a test machine may have two slow cores. Reaching it is a failure."""

JOB = """
name = "tiny"
[model]
architecture = "llama"
hidden_size = 32
intermediate_size = 64
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
sequence_length = 32
learning_rate = 1e-3
warmup_steps = 3
seed = 1
[evaluation]
every = 10
sequences = 5
[plan]
{plan}
[checkpoint]
every = {checkpoint}
"""


class Process:
    """A running console script."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, output: Path) -> None:
        self.name, self._process, self._output = name, process, output

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def said(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self, seconds: float = DEADLINE) -> int:
        """The exit code, once there is one."""
        try:
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"{self.name} did not end in {seconds:.0f} s; it said:\n{self.said()}") from None


class World:
    """One test's folder, processes and temporary files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.processes: list[Process] = []

    def job(self, steps: int = 20, plan: str = "", checkpoint: int = 10, tied: bool = True) -> Path:
        path = self.folder / "job.toml"
        text = JOB.format(steps=steps, plan=plan, checkpoint=checkpoint, tied=str(tied).lower())
        path.write_text(text, encoding="utf-8")
        return path

    def plan(self, stages: list[list[int]], routes: list[str]) -> Path:
        """A layout with one-letter placeholders: routes such as "ac", one letter a stage."""
        path = self.folder / f"plan-{len(list(self.folder.glob('plan-*')))}.json"
        path.write_text(json.dumps({"stages": stages, "routes": [list(route) for route in routes]}), encoding="utf-8")
        return path

    async def start(self, script: str, *arguments: str | Path) -> Process:
        """Start a console script in a session of its own."""
        output = self.folder / f"output-{len(self.processes)}"
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                str(BIN / script),
                *map(str, arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        started = Process(f"{script} {arguments[0]}", process, output)
        self.processes.append(started)
        return started

    async def run(self, script: str, *arguments: str | Path, seconds: float = DEADLINE) -> tuple[int, str]:
        """Run a console script to its end: exit code and all output."""
        process = await self.start(script, *arguments)
        return await process.ended(seconds), process.said()

    async def serve(self, job: Path, *arguments: str | Path, state: str = "coordinator") -> Process:
        """A coordinator on loopback, once its invite is there."""
        folder = self.folder / state
        (folder / "invite").unlink(missing_ok=True)
        started = await self.start(
            "dtfm-coordinator", "serve", job, "--state-dir", folder, "--listen", "127.0.0.1", "--port", "0", *arguments
        )
        await self.until((folder / "invite").exists, "the invite is written")
        return started

    async def join(self, name: str, *arguments: str | Path, state: str = "coordinator") -> Process:
        invite = f"@{self.folder / state / 'invite'}"
        return await self.start(
            "dtfm-node", "join", invite, "--state-dir", self.folder / name, "--device", "cpu", "--threads", "1",
            "--verbose", *arguments,
        )  # fmt: skip

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
        """Wait until `condition` holds."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - other processes' files tell, and wake nobody
                    await asyncio.sleep(0.05)
        except TimeoutError:
            said = "\n".join(f"--- {process.name} ({process.code})\n{process.said()}" for process in self.processes)
            raise AssertionError(f"waited {seconds:.0f} s in vain until {what}\n{said}") from None

    def rows(self, state: str = "coordinator") -> list[dict[str, Any]]:
        path = self.folder / state / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def status(self, state: str = "coordinator") -> dict[str, Any]:
        path = self.folder / state / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"phase": None, "nodes": []}

    def plan_in_force(self, state: str = "coordinator") -> dict[str, Any]:
        path = self.folder / state / "plan.json"
        return json.loads(path.read_text()) if path.exists() else {"version": 0, "routes": []}

    def checkpoints(self, state: str = "coordinator") -> list[int]:
        found = (self.folder / state / "checkpoints").glob("step-*/manifest.json")
        return sorted(int(path.parent.name.removeprefix("step-")) for path in found)

    def leftovers(self) -> list[str]:
        """Processes and temporary files that belong to this world."""
        mark = str(self.temporary)
        # torch keeps a cache folder for its compiler there, as soon as an optimizer is made
        found = [str(path) for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
        return found

    async def clear(self) -> None:
        """End whatever still runs."""
        mark = str(self.temporary)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == mark:
                    process.kill()
        for started in self.processes:
            await started.ended()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    # Not pytest's own folder: the path of a Unix socket has at most 108 bytes.
    folder = Path(tempfile.mkdtemp(prefix="swarm-"))
    made = World(folder)
    try:
        yield made
    finally:
        await made.clear()
        shutil.rmtree(folder, ignore_errors=True)
