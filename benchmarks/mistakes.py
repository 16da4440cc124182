"""Mistakes that people make: what they are told, and within how many seconds.

Each is made on this machine with the programs that people run. A coordinator of a small job serves where one is needed.
Seconds are from the start of the command to its end, or to the line where it goes on; they include the seconds in which
Python and its libraries are loaded.
"""

import argparse
import asyncio
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.harness.daemon import BIN, Daemon
from tests.harness.entrances import free_port
from tests.harness.jobs import TINY
from tests.harness.swarm import Swarm

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.identity.invite import Invite

LIMIT_SECONDS = 90.0
LOOK_SECONDS = 0.02
FULL = ("bash", "-c", 'prlimit --fsize=100 "$@" 2>&1 | cat; exit ${PIPESTATUS[0]}', "full")
"""By what a program is started that can write no file of more than 100 bytes, but for what it says."""
HEADINGS = ("mistake", "what is said", "seconds", "exit code")


@dataclass(frozen=True)
class Mistake:
    """A mistake, and what came of it."""

    name: str
    said: str
    seconds: float
    code: int | None
    """Exit code; None: the program goes on, and says so."""

    @property
    def cells(self) -> tuple[str, ...]:
        return self.name, self.said, f"{self.seconds:.1f}", "goes on" if self.code is None else str(self.code)


class Mistakes:
    """The mistakes of owners and volunteers of one small swarm."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._invite = Invite.decode(f"@{swarm.coordinator.folder / 'invite'}")
        self._joined = 0

    async def all(self) -> AsyncIterator[Mistake]:
        """Make each of them."""
        text, swarm = self._invite.encode(), self._swarm
        yield await self._join(
            "invite with a letter changed", text[:60] + ("A" if text[60] != "A" else "B") + text[61:]
        )
        yield await self._join("invite cut short", text[:-20])
        yield await self._join("invite of another version", re.sub(r"^dtfm\d+", "dtfm99", text))
        closed, host = free_port(), self._invite.entrance.rpartition(":")[0]
        nowhere = self._invite.model_copy(update={"entrance": f"{host}:{closed}"})
        yield await self._join("port of the entrance closed", nowhere.encode())
        unknown = self._invite.model_copy(update={"entrance": "coordinator.invalid:7700"})
        yield await self._join("name of the coordinator unknown", unknown.encode())
        door = re.sub(r"/tcp/\d+", f"/tcp/{closed}", self._invite.dht[0])
        yield await self._join("port for data closed", self._invite.model_copy(update={"dht": (door,)}).encode())
        yield await self._join("disk full", text, within=FULL)
        yield await self._join("memory short", text, "--memory", "0.0001", until="smallest stage")
        yield await self._join("no CUDA here", text, "--device", "cuda")
        yield await self._ended("another Python", str(BIN / "python"), "-m", "pip", "download", "--no-deps",
                                "--no-build-isolation", "--python-version", "3.10", "--only-binary=:all:", "-d",
                                str(swarm.folder / "wheels"), str(Path(__file__).parents[1]))  # fmt: skip
        yield await self._serve("typo in the job", lambda job: job.replace("steps =", "step ="))
        yield await self._serve("text missing", lambda job: job.replace('"cpython"', '["gone/*.txt"]'))
        port = self._invite.entrance.rpartition(":")[2]
        yield await self._serve("two coordinators on one port", lambda job: job, "--port", port)

    async def _join(
        self, name: str, invite: str, *options: str, until: str | None = None, within: tuple[str, ...] = ()
    ) -> Mistake:
        """Join with an invite in a file, in a folder of its own."""
        self._joined += 1
        path = self._swarm.folder / f"invite-{self._joined}"
        path.write_text(invite, encoding="utf-8")
        folder = self._swarm.folder / f"mistake-{self._joined}"
        command = ("dtfm-node", "join", "--yes", f"@{path}", "--state-dir", str(folder), "--device", "cpu", *options)
        return await self._ended(name, *command, until=until, within=within)

    async def _serve(self, name: str, change: Callable[[str], str], *options: str) -> Mistake:
        """Serve a changed job, in a folder of its own."""
        self._joined += 1
        path = self._swarm.folder / f"job-{self._joined}.toml"
        path.write_text(change(TINY.job(1000)), encoding="utf-8")
        folder = self._swarm.folder / f"mistake-{self._joined}"
        return await self._ended(
            name, "dtfm-coordinator", "serve", str(path), "--state-dir", str(folder), "--listen", "127.0.0.1", *options
        )

    async def _ended(
        self, name: str, script: str, *arguments: str, until: str | None = None, within: tuple[str, ...] = ()
    ) -> Mistake:
        """Run a program to its end, or to the line with the words `until`."""
        path = script if script.startswith("/") else str(BIN / script)
        daemon = Daemon(name, (path, *arguments), self._swarm.folder / name.replace(" ", "-"), within=within)
        begun = time.monotonic()
        await daemon.start()
        try:
            while daemon.alive and (until is None or until not in daemon.said()):
                if time.monotonic() - begun > LIMIT_SECONDS:
                    raise AssertionError(f"{name}: nothing within {LIMIT_SECONDS:g} s\n{daemon.said()}")
                await asyncio.sleep(LOOK_SECONDS)
            seconds = time.monotonic() - begun
            code = None if daemon.alive else await daemon.exit_code(1.0)
        finally:
            if daemon.alive:
                daemon.signal(signal.SIGKILL)
                await daemon.exit_code()
        return Mistake(name, self._line(daemon.said(), until), seconds, code)

    def _line(self, said: str, until: str | None) -> str:
        """The line that tells the mistake, without what differs from run to run."""
        lines = [line for line in said.splitlines() if line.strip()]
        told = [line for line in lines if (until in line if until else line.lower().startswith("error: "))]
        line = re.sub(r"^[0-9:]{8} ", "", (told or lines or ["nothing"])[-1])
        for text, word in ((str(self._swarm.folder), "DIR"), (str(Path(__file__).parents[1]), "dtfm")):
            line = line.replace(text, word)
        return re.sub(r"\s+", " ", line).replace("|", "/")


async def made() -> list[Mistake]:
    """Make all mistakes, beside a coordinator that waits for two nodes."""
    found = []
    async with Swarm.running(TINY) as swarm:
        await swarm.serve(swarm.job(1000), "--min-nodes", "2")
        async for one in Mistakes(swarm).all():
            print(*one.cells, sep="\n  ", file=sys.stderr, flush=True)
            found.append(one)
    return found


def main() -> None:
    """Make all mistakes, and print or keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    where = machine()
    rows = [one.cells for one in asyncio.run(made())]
    show("mistakes", HEADINGS, rows)
    command = "python -m benchmarks.mistakes" + (f" --out {asked.out}" if asked.out else "")
    keep(asked.out, "Mistakes that people make", command, [f"{where}.\n", markdown("What is said", HEADINGS, rows)])


if __name__ == "__main__":
    main()
