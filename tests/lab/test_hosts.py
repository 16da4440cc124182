"""How a lab's hosts are taken away: what still runs on them ends before; here without namespaces."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtfm_lab.emulation import hosts

POLITE = "import time; print('up', flush=True); time.sleep(999)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {POLITE}"


class Namespaces:
    """Stands for `ip`: which processes are in a namespace, and what was deleted while what ran."""

    def __init__(self) -> None:
        self.inside: dict[str, list[subprocess.Popen[bytes]]] = {}
        self.deleted: list[str] = []

    def start(self, name: str, code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        self.inside.setdefault(name, []).append(process)
        return process

    def run(self, *command: str, check: bool = True) -> str:
        *_, what, name = command
        running = [process.pid for process in self.inside.get(name, []) if process.poll() is None]
        if what == "delete":
            assert not running
            self.deleted.append(name)
        return "".join(f"{pid}\n" for pid in running)


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespaces]:
    made = Namespaces()
    monkeypatch.setattr(hosts, "_run", made.run)
    yield made
    for process in (one for many in made.inside.values() for one in many):
        process.kill()
        process.communicate()


@pytest.mark.process
def test_what_runs_on_hosts_ends_before_they_go_by_force_where_it_must(namespaces: Namespaces) -> None:
    polite, stubborn = namespaces.start("one", POLITE), namespaces.start("two", STUBBORN)
    hosts._remove(["one", "two", "three"], grace_seconds=0.5)
    assert (polite.returncode, stubborn.returncode) == (-signal.SIGTERM, -signal.SIGKILL)
    assert namespaces.deleted == ["one", "two", "three"]


@pytest.mark.process
def test_what_runs_on_hosts_of_a_dead_lab_is_swept_and_on_others_is_not(namespaces: Namespaces, tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    names = f"lab{dead.pid}-0", f"lab{os.getpid()}-1", "somebody-elses"
    for name in names:
        (tmp_path / name).touch()
    processes = [namespaces.start(name, POLITE) for name in names]
    hosts._sweep(tmp_path)
    assert [process.poll() for process in processes] == [-signal.SIGTERM, None, None]
    assert namespaces.deleted == [names[0]]
