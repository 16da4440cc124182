"""Warm start of console scripts: a fork of a process that has imported everything, instead of five seconds of imports.

`python -m tests.harness.warm_start SOCKET` is that process, one for all workers of a test run. What the models of the
harness's jobs take, which each program would work out for itself, it has found out, too. It takes a request a
connection, forks, answers with the child's process id and, when that has ended, with its exit code. It ends with the
test run, and its children with it.
"""

import asyncio
import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil

from dtfm_protocol.process.child_processes import end_with_parent
from tests.harness.jobs import SMALL, TINY
from tests.harness.run_folder import owner_of, run_folder

SCRIPTS = {
    "dtfm-node": "dtfm_node.main",
    "dtfm-coordinator": "dtfm_coordinator.main",
    "lying-node": "tests.harness.lying_node",
    "impatient-coordinator": "tests.harness.impatient_coordinator",
}
"""Programs that start warm, console scripts and the harness's own, and the modules of their `main`."""
_IMPORTED = (
    "dtfm_node.daemon",
    "dtfm_node.commands.solo",
    "dtfm_coordinator.serve.service",
    "dtfm_coordinator.tools.local_swarm",
    "dtfm_node.engine.compiled_norms",
    "dtfm_node.engine.compiled_adamw",
    "transformers.models.llama.modeling_llama",
)
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.5
"""Interval of looks at whether the run has ended."""


class WarmProcess:
    """A process that was started warm, as far as it is used like one of `asyncio.subprocess`."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._writer = writer
        self._watching = asyncio.create_task(self._watch(reader))

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        self.returncode = int(await reader.readline())
        self._writer.close()

    async def wait(self) -> int:
        """Wait for its end; return the exit code, or the signal that ended it as a negative number."""
        await asyncio.shield(self._watching)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody has said so yet
                os.kill(self.pid, number)


async def start(script: str, arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> WarmProcess:
    """Start a console script; its output goes to the end of the file `log`."""
    sys.audit("subprocess.Popen", script, arguments, None, None)  # what counts processes counts this one, too
    reader, writer = await asyncio.open_unix_connection(_server())
    request = {"script": script, "arguments": arguments, "environment": environment, "log": str(log)}
    writer.write(json.dumps(request | {"folder": os.getcwd()}).encode() + b"\n")
    return WarmProcess(int(await reader.readline()), reader, writer)


def _server() -> Path:
    """Return the socket of the server; the first caller of a test run waits until it has imported everything."""
    path = run_folder() / "warm"
    if not path.exists():
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _start_server(path)
    return path


def _start_server(path: Path) -> None:
    new = path.with_suffix(".new")
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, str(new)],
        stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None
    assert select.select([server.stdout], [], [], _START_SECONDS)[0], "nothing was imported in two minutes"
    assert server.stdout.readline() == b"ready\n", "what the tests start cannot be imported"
    server.stdout.close()
    server.returncode = 0  # it outlives this process, which waits for it no more
    new.rename(path)


# -- the server -------------------------------------------------------------------------------------------------------


def _serve(path: Path) -> dict[str, Any]:
    """Answer requests until the test run has ended. It returns in each child alone, with what was asked for."""
    owner = owner_of(path.parent)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    children: dict[int, socket.socket] = {}
    while psutil.pid_exists(owner):
        waiting: list[Any] = [listener, ended]
        found, _, _ = select.select(waiting, [], [], _LOOK_SECONDS)
        if ended in found:
            os.read(ended, 1 << 16)
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with children.pop(pid) as asked, contextlib.suppress(OSError):
                    asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        if listener in found:
            asked, _ = listener.accept()
            with asked.makefile("rb") as lines:
                request = json.loads(lines.readline())
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (listener, asked, *children.values()):
                    each.close()
                os.close(ended)
                os.close(wake)
                return dict(request)
            children[pid] = asked
            with contextlib.suppress(OSError):
                asked.sendall(f"{pid}\n".encode())
    shutil.rmtree(path.parent, ignore_errors=True)  # if its owner was killed
    os._exit(0)


def _find_out() -> None:
    """Find out what the models of the harness's jobs take: pure functions keep that, and all forks have it."""
    from dtfm_protocol.data.tokenizer import vocabulary_size
    from dtfm_protocol.job.job_file import Job
    from dtfm_protocol.model.model_config import resolve_config
    from dtfm_protocol.model.single_layer import layer_bytes
    from dtfm_protocol.model.stage_demand import smallest_stage_bytes

    for size in (TINY, SMALL):
        job = Job.model_validate(tomllib.loads(size.job()))
        config = resolve_config(job.model, vocabulary_size(job.data), size.sequence)
        smallest_stage_bytes(config, job.training)
        layer_bytes(config, job.training)


def _become(request: dict[str, Any]) -> None:
    """Make this process what a new one would be, that was started with these arguments and this environment."""
    os.setsid()
    ask = end_with_parent(signal.SIGKILL)
    if ask is not None:
        ask()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for opened, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(opened, number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # where the environment says, not where the server's said
    importlib.reload(importlib.import_module("dtfm_protocol.process.fault_injection"))  # it reads the environment
    sys.argv = [request["script"], *request["arguments"]]


def _run(main: Callable[[], object]) -> NoReturn:
    """Run a program and end this process, as the interpreter would, but for taking apart all that was imported: after
    a fork every page of that would be copied first, which takes a second."""
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, it is said, as the interpreter would
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    gc.disable()  # it would look through all that is imported again and again
    for _module in (*SCRIPTS.values(), *_IMPORTED):
        importlib.import_module(_module)
    _find_out()
    gc.enable()
    gc.freeze()  # what is never collected is not written to, and stays shared
    _request = _serve(Path(sys.argv[1]))
    _become(_request)
    _run(importlib.import_module(SCRIPTS[_request["script"]]).main)
