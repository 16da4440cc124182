"""A real lab: hosts are as far and as fast as was asked for, and nothing of them is left. For root on Linux."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dtfm_lab.emulation import command
from dtfm_lab.emulation.accuracy import PAYLOAD, Gauge, LinkMeasurement
from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.hosts import Hosts, check
from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line

BIN = Path(sys.executable).parent
DEADLINE = 120.0
"""Seconds for any one wait. Reaching it is a failure."""
TRIES = 12
"""For what a busy machine may be in the way of."""
MBIT = 125_000.0
"""Bytes a second."""


def why_not() -> str | None:
    """Why there can be no lab on this machine; None: there can."""
    try:
        with Hosts.made(1):
            return None
    except UserError as error:
        return str(error)


@pytest.fixture(scope="module")
def possible() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no lab on this machine: {reason}")


def real(test: Callable[..., Any]) -> Callable[..., Any]:
    """A mark of tests that make hosts, and start programs on them."""
    for mark in (pytest.mark.root, pytest.mark.process, pytest.mark.usefixtures("possible")):
        test = mark(test)
    return test


def wiring(delay_ms: float = 0.0, mbit: float | None = None, hosts: int = 3) -> Wiring:
    """All links alike."""
    rate = None if mbit is None else mbit * MBIT
    return Wiring(
        delay=[[delay_ms / 1e3] * hosts] * hosts, rate=[[rate] * hosts] * hosts, up=[None] * hosts, down=[None] * hosts
    )


def namespaces(owner: int) -> list[str]:
    folder = Path("/run/netns")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [name for name in names if re.fullmatch(rf"lab{owner}-\d+", name)]


def started(owner: int, word: str = "") -> list[psutil.Process]:
    """What a process has started, and what that has, where `word` is in the command."""
    found = []
    for process in psutil.Process(owner).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found


def emulators() -> list[psutil.Process]:
    return started(os.getpid(), "emulation.emulator")


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def ended(processes: list[psutil.Process]) -> bool:
    return all(map(_has_ended, processes))


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two looks
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


async def found(measure: Callable[[], Awaitable[float]], least: float, most: float) -> float:
    """What is measured; once more where a busy machine was in the way."""
    for _ in range(TRIES):
        value = await measure()
        if least <= value <= most:
            break
    return value


async def seen_by(tool: Gauge, least: float, most: float) -> LinkMeasurement:
    """What is found between the first two hosts, whose round trip is to lie there; once more as `found` does."""
    for _ in range(TRIES):
        seen = await tool.pair(0, 1)
        if least <= seen.round_trip <= most:
            break
    return seen


@contextlib.asynccontextmanager
async def gauge(lab: EmulatedNetwork) -> AsyncIterator[Gauge]:
    made = Gauge(lab)
    try:
        yield made
    finally:
        await made.close()


async def reaches(lab: EmulatedNetwork, sender: int, receiver: int) -> bool:
    """Whether a connection is made, or refused: an answer, in either case."""
    code = (
        "import socket, sys\n"
        "with socket.socket() as s:\n"
        "    s.settimeout(1.5)\n"
        "    try: s.connect((sys.argv[1], 9))\n"
        "    except ConnectionRefusedError: pass\n"
        "    except OSError: sys.exit(3)\n"
    )
    process = await asyncio.create_subprocess_exec(
        *lab.within(sender), sys.executable, "-c", code, lab.address(receiver)
    )
    answer = await process.wait()
    assert answer in (0, 3)
    return answer == 0


def view(folder: Path, gbps: float) -> Path:
    path = folder / "view.json"
    values = {
        "nodes": [{"id": "one"}, {"id": "two"}],
        "latency_ms": [[0, 5], [5, 0]],
        "bandwidth_gbps": [[0, gbps], [gbps, 0]],
    }
    path.write_text(json.dumps(values))
    return path


async def lab_command(*arguments: str | Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        str(BIN / "dtfm-coordinator"), "lab", *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


@real
async def test_programs_on_hosts_find_the_delays_and_rates_that_were_asked_for_and_their_changes() -> None:
    asked = wiring(10.0, 10.0)
    asked.delay[0][1], asked.delay[1][0] = 0.025, 0.005
    asked.delay[0][2] = asked.delay[2][0] = 0.03
    async with EmulatedNetwork.running(asked) as lab, gauge(lab) as tool:
        for one, other in [(0, 1), (0, 2), (1, 2)]:
            trip = asked.round_trip(one, other)
            most = 1.2 * trip + 0.003
            assert trip <= await found(partial(tool.round_trip, one, other, 10), trip, most) <= most

        async def rate(pair: tuple[int, int]) -> float:
            return (await tool.rates([pair], 1.5))[0] / PAYLOAD

        assert await found(lambda: rate((0, 1)), 9 * MBIT, 11 * MBIT) == pytest.approx(10 * MBIT, rel=0.1)
        before = await lab.counts()
        assert before.bytes[0, 1] > 1.3 * 9 * MBIT

        await lab.change(wiring(1.0, 30.0))
        assert 0.002 <= await found(lambda: tool.round_trip(0, 2, 10), 0.002, 0.0054) <= 0.0054
        assert await found(lambda: rate((0, 2)), 27 * MBIT, 33 * MBIT) == pytest.approx(30 * MBIT, rel=0.1)
        after = await lab.counts()
        assert after.bytes[0, 1] >= before.bytes[0, 1]
        assert after.bytes[0, 2] > 1.3 * 27 * MBIT
        assert 0 <= after.late_mean <= after.late_most
        assert 0 <= after.late_since(before) <= after.late_most
        assert after.delivered > before.delivered + 1.3 * 27 * MBIT / 65536


@real
async def test_links_that_lose_packets_or_are_slow_are_measured_too() -> None:
    async with EmulatedNetwork.running(wiring(10.0, 4.0).model_copy(update={"loss": 0.05})) as lab, gauge(lab) as tool:
        seen = await seen_by(tool, 0.02, 0.04)
        assert 0.02 <= seen.round_trip <= 0.04
        assert 0 < seen.rate <= 4 * MBIT
    async with EmulatedNetwork.running(wiring(10.0, 0.03)) as lab, gauge(lab) as tool:
        seen = await seen_by(tool, 0.02, 0.08)
        assert 0.02 <= seen.round_trip <= 0.08
        assert 0.5 <= seen.rate / (0.03 * MBIT * PAYLOAD) <= 1.2


@real
async def test_a_lab_whose_links_cannot_be_measured_says_so_and_goes_on(tmp_path: Path) -> None:
    process = await lab_command(view(tmp_path, 0.001), "--loss", "0.99", "--", "true")
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    assert "one -> two: not measured: " in said
    path = view(tmp_path, 0.001)
    values = json.loads(path.read_text())
    values["bandwidth_gbps"][1][0] = 0
    path.write_text(json.dumps(values))
    process = await lab_command(path, "--", "true")
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    assert "one -> two: not measured: nothing can come back" in said


@real
async def test_hosts_without_a_rate_between_them_cannot_be_reached_and_others_can() -> None:
    def dark(*pairs: tuple[int, int]) -> Wiring:
        made = wiring(1.0)
        rate = [list(row) for row in made.rate]
        for sender, receiver in pairs:
            rate[sender][receiver] = 0.0
        return made.model_copy(update={"rate": rate})

    async with EmulatedNetwork.running(dark((0, 1), (1, 0))) as lab:
        assert not await reaches(lab, 0, 1)
        assert await reaches(lab, 0, 2)
        assert (await lab.counts()).dropped[0, 1] > 0
        await lab.change(dark((2, 0)))
        assert await reaches(lab, 0, 1)
        assert not await reaches(lab, 0, 2)


@real
async def test_a_site_that_goes_dark_in_the_middle_of_a_transfer_comes_back() -> None:
    """It is dark before the rate counts, so that what is measured is how the transfer goes on."""
    async with EmulatedNetwork.running(wiring(20.0, 20.0)) as lab, gauge(lab) as tool:
        sending = asyncio.create_task(tool.rates([(0, 1)], 6.0))
        while (await lab.counts()).bytes.get((0, 1), 0) < 8 * MBIT:  # noqa: ASYNC110 - the emulator says nothing by itself
            await asyncio.sleep(0.02)
        nothing = {"rate": [[0.0] * 3] * 3, "up": [0.0] * 3, "down": [0.0] * 3}
        await lab.change(wiring(20.0, 20.0).model_copy(update=nothing))
        await asyncio.sleep(0.1)  # what is on the way meets the dark
        await lab.change(wiring(20.0, 20.0))
        assert (await sending)[0] >= 0.3 * 20 * MBIT * PAYLOAD
        assert await reaches(lab, 1, 0)


@real
async def test_nothing_is_left_after_a_lab_or_after_an_error_in_it() -> None:
    async with EmulatedNetwork.running(wiring()) as lab:
        assert sorted(namespaces(os.getpid())) == sorted(lab.name(number) for number in range(3))
        (emulator,) = emulators()
    assert not namespaces(os.getpid())
    assert ended([emulator])
    with pytest.raises(KeyError):  # noqa: PT012 - the block ends by it
        async with EmulatedNetwork.running(wiring()):
            (emulator,) = emulators()
            raise KeyError
    assert not namespaces(os.getpid())
    assert ended([emulator])
    assert not emulators()


@real
async def test_a_lab_whose_forwarding_process_has_died_says_so_and_leaves_nothing() -> None:
    async with EmulatedNetwork.running(wiring()) as lab:
        (emulator,) = emulators()
        emulator.kill()
        await until(lambda: ended([emulator]), "the emulator is killed")
        with pytest.raises(UserError, match="has ended or hangs"):
            await lab.counts()
    assert not namespaces(os.getpid())


OWNER = """
import asyncio
from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.wiring import Wiring

async def main():
    none = [[None] * 2] * 2
    async with EmulatedNetwork.running(Wiring(delay=[[0.0] * 2] * 2, rate=none, up=none[0], down=none[0])):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@real
async def test_what_a_killed_owner_leaves_is_swept_at_the_next_start() -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"up\n"
        emulator = started(owner.pid, "emulation.emulator")
        assert len(emulator) == 1
        assert len(namespaces(owner.pid)) == 2
    finally:
        owner.kill()
        await owner.wait()
    await until(lambda: ended(emulator), "the emulator ends with its owner")
    with Hosts.made(1):
        assert not namespaces(owner.pid)


@real
async def test_a_command_runs_everywhere_with_its_host_filled_in_and_its_exit_code_is_handed_on(tmp_path: Path) -> None:
    """Hosts that cannot talk: nothing is measured, so this is quick."""
    script = (
        'echo "{node} {address} {number} $DTFM_LAB_NODE $DTFM_LAB_ADDRESS" > "$0/{node}"; '
        'echo "$DTFM_LAB_HOSTS" > "$0/{node}.json"; exit $((7 * {number}))'
    )
    process = await lab_command(view(tmp_path, 0), "--everywhere", "--", "sh", "-c", script, tmp_path)
    said = (await process.communicate())[0].decode()
    assert process.returncode == 7, said
    assert (tmp_path / "one").read_text() == "one 10.77.0.1 0 one 10.77.0.1\n"
    assert (tmp_path / "two").read_text() == "two 10.77.0.2 1 two 10.77.0.2\n"
    assert json.loads((tmp_path / "two.json").read_text()) == {"one": "10.77.0.1", "two": "10.77.0.2"}
    assert "dropped 0 packets" in said
    assert "Traceback" not in said
    assert not namespaces(process.pid)


@real
def test_a_command_runs_on_the_host_that_is_chosen_or_on_the_first(tmp_path: Path) -> None:
    for on, name in ((None, "one"), ("two", "two")):
        question = command.LabOptions(view(tmp_path, 0), ("sh", "-c", f"echo {{node}} >> {tmp_path}/ran"), on=on)
        command_line.run(command.run(question))
        assert (tmp_path / "ran").read_text().split()[-1] == name
    assert (tmp_path / "ran").read_text() == "one\ntwo\n"
    assert not namespaces(os.getpid())


@real
async def test_ctrl_c_ends_a_lab_and_all_that_runs_in_it(tmp_path: Path) -> None:
    process = await lab_command(
        view(tmp_path, 0), "--everywhere", "--", "sh", "-c", 'echo > "$0/{node}.up"; exec sleep 1000', tmp_path
    )
    await until(lambda: len(list(tmp_path.glob("*.up"))) == 2, "both commands run")
    running = started(process.pid)
    assert len(running) >= 3
    process.send_signal(signal.SIGINT)
    said = (await process.communicate())[0].decode()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not namespaces(process.pid)
    assert ended(running)


@real
async def test_what_runs_in_a_lab_ends_with_it_though_it_is_killed(tmp_path: Path) -> None:
    process = await lab_command(view(tmp_path, 0), "--everywhere", "--", "sleep", "1000")
    await until(lambda: len(started(process.pid, "sleep 1000")) == 2, "both commands run")
    running = started(process.pid)
    process.kill()
    await process.communicate()
    await until(lambda: ended(running), "the commands have ended")
    with Hosts.made(1):
        assert not namespaces(process.pid)


@real
async def test_what_is_no_child_of_a_lab_ends_with_it_or_at_the_next_start(tmp_path: Path) -> None:
    """Where the lab is killed, its own child, the shell, ends at once, and what that has started stays until then."""
    pids = tmp_path / "pid"
    process = await lab_command(view(tmp_path, 0), "--", "sh", "-c", f"sleep 1000 & echo $! > {pids}")
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(int(pids.read_text())).status() == psutil.STATUS_ZOMBIE

    process = await lab_command(view(tmp_path, 0), "--", "sh", "-c", "exec > /dev/null 2>&1; sleep 1000; true")
    await until(lambda: len(started(process.pid, "sleep 1000")) == 2, "the shell and what it has started run")
    running = started(process.pid)
    process.kill()
    # `wait` would also wait for the output's end, and what the shell has started may hold it.
    await until(lambda: process.returncode is not None, "the lab is gone")
    with Hosts.made(1):
        assert not namespaces(process.pid)
    await until(lambda: ended(running), "all of it has ended")


@real
async def test_a_lab_that_is_killed_while_links_are_measured_leaves_no_gauge(tmp_path: Path) -> None:
    process = await lab_command(view(tmp_path, 0.001), "--", "true")
    await until(lambda: started(process.pid, "emulation.probe_program send"), "a transfer is measured")
    running = started(process.pid, "emulation.probe_program")
    assert len(running) == 2
    process.kill()
    await process.wait()
    await until(lambda: ended(running), "the programs that measured have ended")


@real
async def test_ctrl_c_while_links_are_measured_leaves_nothing_either(tmp_path: Path) -> None:
    process = await lab_command(view(tmp_path, 0.001), "--", "true")
    await until(lambda: started(process.pid, "emulation.probe_program send"), "a transfer is measured")
    running = started(process.pid)
    process.send_signal(signal.SIGINT)
    said = (await process.communicate())[0].decode()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not namespaces(process.pid)
    await until(lambda: ended(running), "the programs that measured have ended")


@real
async def test_a_command_ends_when_the_forwarding_process_does(tmp_path: Path) -> None:
    process = await lab_command(view(tmp_path, 0), "--everywhere", "--", "sleep", "1000")
    await until(lambda: len(started(process.pid, "sleep 1000")) == 2, "both commands run")
    running = started(process.pid)
    (emulator,) = started(process.pid, "emulation.emulator")
    emulator.kill()
    said = (await process.communicate())[0].decode()
    assert process.returncode == 2, said
    assert "the forwarding process of the emulated network has ended or hangs" in said
    assert "Traceback" not in said
    assert ended(running)
    assert not namespaces(process.pid)


def refused(question: command.LabOptions, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command ends with, and exit code 2."""
    with pytest.raises(SystemExit) as raised:
        command_line.run(command.run(question))
    assert raised.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not namespaces(os.getpid())
    return said


def test_a_host_that_the_view_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(command.LabOptions(view(tmp_path, 0), ("true",), on="three"), capsys)
    assert "--on three: the view has no such node; it has one, two" in said


def test_a_view_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nothing.json"
    assert "cannot read the view" in refused(command.LabOptions(path, ("true",)), capsys)
    path.write_text("{}")
    assert "nothing.json: " in refused(command.LabOptions(path, ("true",)), capsys)
    path.write_text("{")
    assert "is not JSON" in refused(command.LabOptions(path, ("true",)), capsys)


def test_a_script_for_another_view_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "script.toml"
    path.write_text('[[event]]\nat = 1\nfrom = "Osaka"')
    said = refused(command.LabOptions(view(tmp_path, 0), ("true",), script=path), capsys)
    assert "no node and no region 'Osaka'" in said


def test_who_is_not_root_is_told_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="needs root"):
        check()
    assert "needs root (network namespaces): run it with sudo" in refused(
        command.LabOptions(view(tmp_path, 0), ("true",)), capsys
    )
