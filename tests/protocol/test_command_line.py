"""How a command ends: clean-up first, then one line and the right exit code."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import pytest
import typer

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.command_line import QUIET_SECONDS, command_line, find_user_error, guarded, run

WAITING = """
import asyncio, contextlib, os, signal
from dtfm_protocol.process.command_line import run

async def main() -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait())
            print("ready", flush=True)
    finally:
        {cleanup}
        print("cleaned up", flush=True)

run(main())
"""


class Order(StrEnum):
    first = "first"
    last = "last"


def ended(capsys: pytest.CaptureFixture[str], error: BaseException) -> str:
    """What a command that fails with `error` says; it exits with 2."""
    with pytest.raises(SystemExit) as caught, guarded():
        raise error
    assert caught.value.code == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.count("\n") == 1
    return said


def test_a_user_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(capsys, UserError("no such job:\n  mend it")) == "error: no such job: mend it\n"


def test_a_wrong_option_is_told_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(add_completion=False)

    @app.command()
    def study(
        order: Annotated[Order | None, typer.Option()] = None, count: Annotated[int, typer.Option(min=1)] = 1
    ) -> None:
        raise AssertionError("a wrong option is no study")

    for name, value, said in (
        ("--order", "x", "'x' is not one of 'first', 'last'"),
        ("--count", "x", "should be a whole number"),
        ("--count", "0", "should be at least 1"),
    ):
        with pytest.raises(SystemExit):
            command_line(partial(app, [name, value]))
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: Invalid value for '{name}': {said}; see ")


def test_a_user_error_inside_groups_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [UserError("first")]), UserError("second")])
    assert ended(capsys, group) == "error: first\n"


def test_a_bug_beside_a_user_error_is_not_hidden() -> None:
    group = ExceptionGroup("outer", [UserError("first"), ZeroDivisionError()])
    assert find_user_error(group) is None
    with pytest.raises(ExceptionGroup), guarded():
        raise group


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), guarded():
        raise ZeroDivisionError


def test_an_interrupt_before_there_is_an_event_loop_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, guarded():
        raise KeyboardInterrupt
    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_a_command_that_fails_in_its_event_loop_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        raise UserError("no")

    with pytest.raises(SystemExit) as caught:
        run(main())
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: no\n"


def test_a_command_that_ends_well_just_returns() -> None:
    ran: list[bool] = []

    async def main() -> None:
        ran.append(True)

    run(main())
    assert ran == [True]


APART = """
import asyncio, signal, threading
from dtfm_protocol.process.command_line import run
from dtfm_protocol.process.work_apart import {how}

def work() -> None:
    print("ready", flush=True)
    threading.Event().wait()

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever is started in a shell's background ignores it
{call}
"""


@pytest.mark.process
def test_an_interrupt_that_is_awaited_is_told_and_a_second_one_ends_at_once() -> None:
    code = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from dtfm_protocol.process.command_line import stoppable
with stoppable() as stop:
    before = stop()
    os.kill(os.getpid(), signal.SIGINT)
    print(before, stop(), flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("not reached", flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, "False True\n")
    assert "Ctrl+C again ends at once" in ended.stderr


@pytest.mark.process
@pytest.mark.parametrize(("how", "call"), [("run_apart", "run(run_apart(work))"), ("wait_apart", "wait_apart(work)")])
def test_an_interrupt_waits_for_no_work_apart(how: str, call: str) -> None:
    """Such as compiled code: in a pool of threads the program would end with it only."""
    with subprocess.Popen(
        [sys.executable, "-c", APART.format(how=how, call=call)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(20) == 130
        finally:
            process.kill()


LEAVING = """
import asyncio
from dtfm_protocol.process.command_line import run

asked = asyncio.Event()

async def main() -> None:
    try:
        print("ready", flush=True)
        await asked.wait()
        print("asked", flush=True)
        {then}
    finally:
        print("cleaned up", flush=True)

def leave() -> bool:
    asked.set()
    return {waits}

run(main(), leave)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("waits", "then", "signals", "said"),
    [
        (True, "pass", 1, ["asked", "cleaned up"]),
        (True, "await asyncio.Event().wait()", 2, ["asked", "cleaned up"]),
        (False, "await asyncio.Event().wait()", 1, ["cleaned up"]),
    ],
    ids=["ends by itself", "a second signal ends it", "has nothing to wait for"],
)
def test_a_command_that_may_leave_ends_by_itself_or_at_the_second_signal(
    waits: bool, then: str, signals: int, said: list[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEAVING.format(then=then, waits=waits)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        heard = []
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            heard.append(process.stdout.readline().strip())
        heard += process.stdout.read().splitlines()  # not `communicate`, which does not see what is buffered
    assert heard == said
    assert process.returncode == 143


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_lets_everything_clean_up_and_then_gives_its_exit_code(number: signal.Signals, code: int) -> None:
    """Also when it comes twice: a second Ctrl+C must not cut the clean-up short."""
    cleanup = "os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM); await asyncio.sleep(0.05)"
    script = textwrap.dedent(WAITING).format(cleanup=cleanup)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            out, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out, said) == (code, "cleaned up\n", "")


LINGERING = """
import asyncio, sys
from dtfm_protocol.process.command_line import run
from dtfm_protocol.process.logs import set_up

async def main() -> None:
    try:
        print("ready", flush=True)
        await asyncio.Event().wait()
    finally:
        {lingers}

set_up("plain")
run(main(), waits_for="the tide")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "lingers",
    [
        "await asyncio.sleep(60)",
        "asyncio.get_running_loop().run_in_executor(None, __import__('time').sleep, 60)",
    ],
)
def test_who_interrupts_what_takes_long_to_end_is_told_so_and_can_end_it_at_once(
    lingers: str,
) -> None:
    """Whether the program itself cleans up, or its event loop waits for a thread."""
    with subprocess.Popen(
        [sys.executable, "-c", LINGERING.format(lingers=lingers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # as a shell may hand it on
        try:
            assert "Stopping: waiting for the tide. Ctrl+C ends it at once now." in process.stderr.readline()
            assert QUIET_SECONDS <= time.monotonic() - begun < QUIET_SECONDS + 5  # a busy machine
            process.send_signal(signal.SIGINT)
            assert process.wait(5) == 130
        finally:
            process.kill()


SLOW = """
import atexit, sys
from dtfm_protocol.process.command_line import command_line

def app(standalone_mode: bool) -> None:
    try:
        raise SystemExit({code})
    finally:
        sys.stdout.write("cleaned up ")

atexit.register(print, "taken apart")
command_line(app)
"""


@pytest.mark.process
@pytest.mark.parametrize(("code", "said"), [(130, "cleaned up "), (2, "cleaned up taken apart\n")])
def test_after_a_signal_nobody_waits_until_what_was_imported_is_taken_apart(code: int, said: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SLOW.format(code=code)], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (code, said)


CLOSED = """
import asyncio, os, signal, sys
from dtfm_protocol.process.command_line import run

asked = asyncio.Event()

async def main() -> None:
    with open(sys.argv[1], "w", buffering=1) as said:
        said.write("ready\\n")
        await asked.wait()
        print("nobody reads this", flush=True)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        said.write("has left")

def leave() -> bool:
    asked.set()
    return True

run(main(), leave)
"""


@pytest.mark.process
def test_a_terminal_that_is_closed_is_one_wish_to_leave(tmp_path: Path) -> None:
    """However often it is said, and though nothing can be written there any more."""
    os.mkfifo(tmp_path / "said")
    child, terminal = pty.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", CLOSED, str(tmp_path / "said")])
    with (tmp_path / "said").open() as said:
        assert said.readline() == "ready\n"
        os.close(terminal)
        assert said.read() == "has left"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 129
