"""Work in a confined process: it ends within its bounds, and the process that asked for it has lost nothing."""

import subprocess
import sys
import textwrap

import pytest

from dtfm_protocol.process.memory_limit import MARGIN_BYTES, most_data

GIB = 1 << 30
PROGRAM = """
import asyncio, fcntl, os, signal, sys, time
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.confined_process import ConfinedProcess

def work(data):
    if data == b"much":
        return bytes(len(bytearray(3 << 30)))
    if data == b"many":
        return str([bytes(100_000) for _ in range(10**6)]).encode()
    if data == b"long":
        while True:
            pass
    if data == b"dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if data == b"bug":
        raise ValueError("a bug")
    if data == b"files":
        return repr(sorted(int(name) for name in os.listdir("/dev/fd"))).encode()
    return data[::-1]

async def main(process):
    try:
        seconds = 2 if sys.argv[1] == "long" else 60  # which a busy machine needs
        print((await process.run(sys.argv[1].encode(), memory=1 << 30, seconds=seconds)).decode())
    except UserError as error:
        print("refused:", error)

held = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
fcntl.flock(held, fcntl.LOCK_EX)
with ConfinedProcess.forked(work) as process:
    pid = process._pid
    asyncio.run(main(process))
    try:
        os.kill(pid, 0)
        print("it lives")
    except ProcessLookupError:
        pass
"""


def asked(what: str, lock: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what, str(lock)], capture_output=True, text=True, check=False, timeout=90
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.process
@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("abc", "cba"),
        ("much", "refused: it takes more than 1.07 GB of memory"),
        ("many", "refused: it takes more than 1.07 GB of memory"),
        ("long", "refused: it takes more than 2 s of a processor, or 10 times as long on a busy machine"),
        ("dies", "refused: the process that works it out has ended without an answer"),
        ("bug", "refused: the process that works it out has ended without an answer"),
    ],
)
def test_work_ends_within_its_bounds_and_so_does_its_process(what: str, answer: str, tmp_path: object) -> None:
    assert asked(what, f"{tmp_path}/lock") == answer


@pytest.mark.process
def test_a_confined_process_has_no_file_of_the_one_that_it_was_copied_from(tmp_path: object) -> None:
    """A lock of its state dir, above all: it would hold it on. Left are three, a pipe, and the list that it reads."""
    assert len(eval(asked("files", f"{tmp_path}/lock"))) == 5


@pytest.mark.parametrize(
    ("offered", "available", "more"),
    [
        (4 * GIB, 100 * GIB, 8 * GIB + MARGIN_BYTES),
        (4 * GIB, 6 * GIB, 6 * GIB),
        (0.001 * GIB, 100 * GIB, 0.002 * GIB + MARGIN_BYTES),
        (4 * GIB, 0, MARGIN_BYTES),
        (30 * GIB, 30 * GIB, 30 * GIB),
    ],
)
def test_a_process_is_held_to_twice_its_offer_and_a_margin_or_what_is_free(
    offered: float, available: int, more: float
) -> None:
    assert most_data(GIB // 2, offered, available) == GIB // 2 + int(more)


@pytest.mark.process
def test_above_the_limit_the_system_refuses_whoever_asks() -> None:
    program = """
        import torch
        from dtfm_node.engine.device import is_out_of_memory
        from dtfm_protocol.process.memory_limit import data_bytes, hold_data_to
        hold_data_to(data_bytes() + (1 << 29))
        kept = torch.ones(1 << 20)
        for ask in (lambda: torch.empty(1 << 30), lambda: bytearray(1 << 30)):
            try:
                ask()
            except Exception as error:
                assert is_out_of_memory(error), repr(error)
                assert not is_out_of_memory(RuntimeError("a bug"))
            else:
                raise SystemExit("it was given")
        print(kept.sum().item())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "1048576.0\n"), done.stderr
