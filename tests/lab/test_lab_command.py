"""`dtfm-coordinator lab`: what it refuses, and how it ends; here without namespaces."""

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator import main
from dtfm_lab.emulation import command
from dtfm_lab.emulation.emulated_network import EmulatedNetwork
from dtfm_lab.emulation.wiring import Wiring
from dtfm_protocol.errors import UserError
from dtfm_protocol.process import command_line

TWO = [[0, 0], [0, 0]]


@pytest.fixture
def view(tmp_path: Path) -> Path:
    """Two hosts that cannot talk: nothing is measured."""
    path = tmp_path / "view.json"
    nodes = [{"id": "one", "up_gbps": 1}, {"id": "two"}]
    path.write_text(json.dumps({"nodes": nodes, "latency_ms": TWO, "bandwidth_gbps": TWO}))
    return path


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option in ("--scale", "--loss", "--queue-ms") for value in ("inf", "nan")],
)
def test_numbers_without_end_and_those_that_are_none_are_refused_in_one_line(
    view: Path, option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # no lab is made, whatever comes
    monkeypatch.setattr(sys, "argv", ["dtfm-coordinator", "lab", str(view), option, value, "--", "true"])
    with pytest.raises(SystemExit) as raised:
        main.main()
    assert raised.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert option in said


@pytest.mark.unit
async def test_a_mistyped_program_is_found_before_a_lab_is_made(view: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmulatedNetwork, "running", lambda wiring: pytest.fail("made a lab"))
    with pytest.raises(UserError, match="there is no program 'ehco'"):
        await command.run(command.LabOptions(view, ("ehco", "hello")))


class Here:
    """Stands for the hosts: all of them are this machine."""

    devices = ()

    def within(self, number: int) -> tuple[str, ...]:
        return ("env",)


EMULATOR = """
import sys
for line in sys.stdin:
    if not line.strip():
        print('{"pairs": [], "delivered": 0, "late": 0.0, "late_most": 0.0}', flush=True)
"""


@pytest.fixture
def emulators(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """The forwarding processes of labs on such hosts, in place of real ones."""
    made: list[asyncio.subprocess.Process] = []

    @contextlib.asynccontextmanager
    async def running(wiring: Wiring) -> AsyncIterator[EmulatedNetwork]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", EMULATOR, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        made.append(process)
        hosts: Any = Here()
        try:
            yield EmulatedNetwork(hosts, process, wiring)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    monkeypatch.setattr(EmulatedNetwork, "running", running)
    return made


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.mark.process
async def test_what_paced_programs_were_late_with_is_said(
    view: Path, emulators: list[asyncio.subprocess.Process], caplog: pytest.LogCaptureFixture
) -> None:
    counts = """echo '{"actions": 5, "late": 1, "most": 0.025}' > $DTFM_LATE_ACTIONS/$DTFM_LAB_NODE.jsonl"""
    with caplog.at_level(logging.INFO):
        await command.run(command.LabOptions(view, ("sh", "-c", counts), everywhere=True))
        assert "pace missed: 2 of 10 actions were late, by 25 ms at most" in caplog.text
        caplog.clear()
        await command.run(command.LabOptions(view, ("true",)))
        assert "pace" not in caplog.text


@pytest.mark.process
async def test_a_command_ends_when_the_forwarding_process_does(
    view: Path, tmp_path: Path, emulators: list[asyncio.subprocess.Process]
) -> None:
    up = tmp_path / "up"
    question = command.LabOptions(view, ("sh", "-c", f"echo $$ > {up}; exec sleep 1000"))
    running = asyncio.create_task(command.run(question))
    await until(lambda: up.exists() and up.read_text())
    emulators[0].kill()
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(30):
            await running
    assert "has ended or hangs" in str(command_line.find_user_error(raised.value))
    with pytest.raises(ProcessLookupError):
        os.kill(int(up.read_text()), 0)


@pytest.mark.process
async def test_a_script_that_fails_is_no_secret(
    view: Path, emulators: list[asyncio.subprocess.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change(*_: object) -> None:
        raise UserError("no such change")

    monkeypatch.setattr(command, "_change", change)
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        async with asyncio.timeout(30):
            await command.run(command.LabOptions(view, ("sleep", "1000")))


@pytest.mark.process
@pytest.mark.parametrize("code", [0, 7])
async def test_a_command_that_ends_hands_its_code_on(
    view: Path, emulators: list[asyncio.subprocess.Process], code: int
) -> None:
    told = "[ {node}/{address}/{address:two} = one/10.77.0.1/10.77.0.2 ]"
    ending = command.run(command.LabOptions(view, ("sh", "-c", f"{told} && exit {code}; exit 9")))
    if not code:
        await ending
        return
    with pytest.raises(command.CommandEnded) as raised:
        await ending
    assert raised.value.code == code
