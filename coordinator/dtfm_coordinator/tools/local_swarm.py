"""Swarm on this machine alone: a coordinator here, and N `dtfm-node join` processes that know only its invite."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

from dtfm_coordinator.serve.serve_options import ServeOptions
from dtfm_coordinator.serve.service import Coordinator
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.process.child_processes import end_with_parent
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import make_private

NODES_STOP_SECONDS = 15.0


class LocalNodes:
    """Node processes of a local swarm."""

    def __init__(self, folder: Path, count: int, trace: Path | None = None) -> None:
        self._folder, self._count, self._trace = folder, count, trace
        self._processes: list[asyncio.subprocess.Process] = []
        self._threads = max(1, (os.cpu_count() or 1) // count)

    async def start(self) -> None:
        """Start all nodes; each has a state dir `nodes/N` with its log in `node.log`."""
        program = shutil.which(
            "dtfm-node", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        )
        if program is None:
            raise UserError("the console script dtfm-node is not installed: pip install dtfm")
        extra = [] if self._trace is None else ["--trace", str(self._trace)]
        for number in range(1, self._count + 1):
            folder = self._folder / "nodes" / str(number)
            make_private(folder)
            with (folder / "node.log").open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    program, "join", "--yes", f"@{self._folder / 'invite'}",
                    "--state-dir", str(folder), "--device", "cpu", "--threads", str(self._threads), "--nice", "0",
                    *extra,
                    stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                    # Ctrl+C goes to the whole terminal group: the nodes are stopped in order, by this side.
                    start_new_session=True,
                    preexec_fn=end_with_parent(signal.SIGTERM),
                )  # fmt: skip
            self._processes.append(process)
        log.info(
            "Started %d nodes on this machine; their logs are %s",
            self._count,
            self._folder / "nodes" / "*" / "node.log",
        )

    async def watch(self) -> None:
        """Log which node ends badly, until all have ended.

        Raises:
            UserError: every node has ended badly.
        """
        pending = {asyncio.create_task(process.wait(), name=str(n)): n for n, process in enumerate(self._processes, 1)}
        bad = 0
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = pending.pop(task)
                if task.result() != 0:
                    bad += 1
                    path = self._folder / "nodes" / str(number) / "node.log"
                    log.warning("Node %d ended with code %d: %s", number, task.result(), _last_line(path))
        if bad == self._count:
            raise UserError(f"no node is left: see {self._folder / 'nodes' / '*' / 'node.log'}")

    async def stop(self) -> None:
        """Ask the nodes that still run to leave, and kill those that do not."""
        running = [process for process in self._processes if process.returncode is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(NODES_STOP_SECONDS):
                for process in running:
                    await process.wait()
        except TimeoutError:
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def run(job: Job, folder: Path, count: int, options: ServeOptions, trace: Path | None = None) -> None:
    """Serve `job` and train it with `count` local nodes, to its end.

    Args:
        trace: folder to which the nodes write timelines; None: they write none.

    Raises:
        UserError: the coordinator cannot go on (`Coordinator.run`), or every node has ended badly.
    """
    nodes = LocalNodes(folder, count, trace)
    invited = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(Coordinator(job, folder, options).run(lambda _: invited.set()))
        waiting = tasks.create_task(invited.wait())
        watching: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if invited.is_set():
                await nodes.start()
                watching = tasks.create_task(nodes.watch())
            await asyncio.wait({serving})
        finally:
            waiting.cancel()
            if watching is not None:
                watching.cancel()
            await nodes.stop()


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
