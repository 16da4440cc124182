"""The processes of one contender: forked from one that has imported everything, watched, counted, and ended for sure.

Importing torch, transformers and hivemind takes some ten seconds a process; a fork server pays that once.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

PRELOADED = [
    "benchmarks.baselines.ddp",
    "benchmarks.baselines.one_process",
    "benchmarks.baselines.torch_pipeline",
    "dtfm_coordinator.main",
    "dtfm_coordinator.serve.service",
    "dtfm_node.daemon",
    "dtfm_node.main",
    "dtfm_node.commands.solo",
    "transformers.models.llama.modeling_llama",
]
TAIL_LINES = 8
END_SECONDS = 10.0


@dataclass(frozen=True)
class Cpu:
    """Processor seconds, user and system, up to a moment."""

    at: float
    seconds: dict[str, float]
    """By role."""
    machine: float
    """Of all processes of this machine."""


@dataclass(frozen=True)
class _Member:
    role: str
    started: str
    """The role of the processes that it starts."""
    process: ForkServerProcess
    log: Path


class Team:
    """Processes that work together. Create it with `running`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where their logs and files are."""
        self._members: list[_Member] = []

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> Iterator["Team"]:
        """A team whose processes, and all that those started, are killed when the block is left."""
        team = cls(folder)
        try:
            yield team
        finally:
            team._kill()

    def start(self, role: str, function: Callable[..., None], *arguments: Any, started: str = "children") -> None:
        """Fork a process that calls `function`, and writes what it prints to a log of its own."""
        log = self.folder / f"{role}-{len(self._members)}.log"
        process = multiprocessing.get_context("forkserver").Process(target=_run, args=(log, function, arguments))
        process.start()
        self._members.append(_Member(role, started, process, log))

    def check(self) -> None:
        """Make sure that nobody has failed.

        Raises:
            SystemExit: one has, with the last lines of its log.
        """
        for member in self._members:
            if member.process.exitcode:
                raise SystemExit(f"{member.log.stem} ended with code {member.process.exitcode}:\n{_tail(member.log)}")

    def last_words(self) -> str:
        """The last lines of every log."""
        return "\n".join(f"{member.log.stem}:\n{_tail(member.log)}" for member in self._members)

    def cpu(self) -> Cpu:
        """What was taken so far."""
        seconds: dict[str, float] = {}
        for process, role in self._processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds[role] = seconds.get(role, 0.0) + times.user + times.system
        everyone = psutil.cpu_times()
        return Cpu(time.monotonic(), seconds, sum(everyone) - everyone.idle - getattr(everyone, "iowait", 0.0))

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        """All processes, also those that members have started, with their roles."""
        for member in self._members:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(member.process.pid)
                yield process, member.role
                for child in process.children(recursive=True):
                    yield child, member.started

    def _kill(self) -> None:
        """End everything at once: nothing that these processes would still write is of use to anyone."""
        processes = [process for process, _ in self._processes()]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for member in self._members:
            member.process.join(END_SECONDS)
        psutil.wait_procs(processes, timeout=END_SECONDS)


def prepare(folder: Path) -> None:
    """Before the first team: one thread a process unless it asks for more, temporary files in `folder`, clean ends."""
    temporary = folder / "t"  # short: a Unix socket's path has at most 108 bytes
    temporary.mkdir()
    os.environ.update(OMP_NUM_THREADS="1", TMPDIR=str(temporary))
    multiprocessing.set_forkserver_preload(PRELOADED)

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def command(program: str, *arguments: object) -> None:
    """Run one of this project's two programs in this process, as its console script would."""
    sys.argv = [program, *map(str, arguments)]
    importlib.import_module(f"{program.replace('-', '_')}.main").main()


def _run(log: Path, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Where every process starts."""
    os.setsid()  # Ctrl+C in a terminal goes to the benchmark alone, which ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with log.open("ab") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    function(*arguments)


def _end_with_parent() -> None:
    """Do not outlive the benchmark, even when it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"  {line[:300]}" for line in lines[-TAIL_LINES:])
