"""Programs that a benchmark runs: in a folder of their own that goes with them, whatever ends the benchmark."""

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.step_metrics import StepMetrics

BIN = Path(sys.executable).parent
STOP_SECONDS = 25.0
"""For a program to end after Ctrl+C: longer than a local swarm gives its nodes."""
WATCH_SECONDS = 0.05
SHOWN_LINES = 40
"""Of what a program said, where it failed."""


@dataclass(frozen=True)
class Program:
    """A program that was started."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        """Of the process itself; it may have children."""
        return self.process.pid

    def show(self) -> None:
        """Say on standard error what it said last, and what the nodes said."""
        for path in (self.output, *sorted(self.output.parent.rglob("node.log"))):
            said = path.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
            sys.stderr.write("\n".join([f"--- {path.relative_to(self.output.parent)}", *said, ""]))

    def check(self) -> bool:
        """Whether it has ended.

        Raises:
            UserError: with a failure; what it said goes to standard error.
        """
        code = self.process.poll()
        if code:
            self.show()
            raise UserError(f"{self.name} ended with {code}: see above")
        return code is not None

    def watch(self, seconds: float, look: Callable[[], bool] = lambda: False) -> None:
        """Wait until it has ended, or `look`, asked again and again, is true.

        Raises:
            UserError: it failed, or took too long; what it said goes to standard error.
        """
        deadline = time.monotonic() + seconds
        while not look() and not self.check():
            if time.monotonic() > deadline:
                self.show()
                raise UserError(f"{self.name} did not get there in {seconds:.0f} s: see above")
            time.sleep(WATCH_SECONDS)


class Runs:
    """The programs of one benchmark. Create it with `open`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self._programs: list[Program] = []

    @classmethod
    @contextlib.contextmanager
    def open(cls, name: str) -> Iterator[Self]:
        """A temporary folder; on leaving, by Ctrl+C and SIGTERM too, programs are ended and the folder is removed."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise SystemExit(128 + number)

        before = signal.signal(signal.SIGTERM, stop)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))  # short: a Unix socket's path has at most 108 bytes
        runs = cls(folder)
        try:
            yield runs
        finally:
            with uninterrupted():
                runs.stop()
                shutil.rmtree(folder, ignore_errors=True)
            signal.signal(signal.SIGTERM, before)

    def start(self, *command: object, prefix: Sequence[str] = ()) -> Program:
        """Start a console script or a program, in a session of its own: Ctrl+C is not for it.

        Args:
            prefix: a command that runs it.
        """
        name, *arguments = map(str, command)
        program = BIN / name if (BIN / name).exists() else name
        output = self.folder / f"output-{len(self._programs)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*prefix, str(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self._temporary), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        started = Program(f"{name} {arguments[0]}" if arguments else name, process, output)
        self._programs.append(started)
        return started

    def stop(self) -> None:
        """End every program, first those started last; kill what will not go, and whatever they left running."""
        running = [program for program in reversed(self._programs) if program.process.poll() is None]
        for program in running:
            program.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        for program in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(max(0.0, deadline - time.monotonic()))
        mark = str(self._temporary)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR") == mark:
                    process.kill()
        for program in running:
            program.process.wait()
        self._programs.clear()

    def discard(self, state: Path) -> None:
        """Remove a state dir that is done with: checkpoints are large."""
        shutil.rmtree(state, ignore_errors=True)

    def swarm(self, job: Path, nodes: int, state: Path, *options: object) -> Program:
        """Start a coordinator with its nodes, as `dtfm-coordinator swarm`."""
        return self.start("dtfm-coordinator", "swarm", job, "--nodes", nodes, "--state-dir", state, *options)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl+C waits: a second one must not cut the clean-up short."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def rows(state: Path) -> list[StepMetrics]:
    """The committed steps of a swarm's state dir."""
    return MetricsFile(state / "metrics.jsonl").rows()


def forced(stages: Sequence[tuple[int, int]], routes: Sequence[str], **fields: Any) -> str:
    """A plan file's text, with one letter for each peer: routes such as "ac"."""
    return json.dumps({"stages": stages, "routes": [list(route) for route in routes], **fields})


def toml(tables: dict[str, Any]) -> str:
    """A job file's text: top-level values, then one table after the other."""
    lines = [f"{key} = {_value(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


def machine() -> str:
    """What the benchmark runs on, in one line; taken when it begins, for the load of others."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return (
        f"{os.cpu_count()} cores ({model}), {psutil.virtual_memory().total / 2**30:.0f} GiB of memory, "
        f"{platform.system()} {platform.release().partition('-')[0]}, Python {platform.python_version()}, "
        f"torch {importlib.metadata.version('torch')}; load of others when it began: {os.getloadavg()[0]:.1f}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
