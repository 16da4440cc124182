"""An invite is read from a file, from standard input or at a terminal, so that no other user's `ps` shows it."""

import io
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.invite_source import invite_text
from tests.harness.membership import invite_of

LONG = "dtfm3." + "x" * 9000 + ".00000000"
"""Longer than the lines that a terminal assembles."""
INVITE = invite_of().model_copy(update={"entrance": "127.0.0.1:9"})


def piped(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data))


def test_standard_input_and_arguments_are_taken_as_they_are() -> None:
    assert invite_text("-", piped(LONG.encode() + b"\n")) == LONG + "\n"
    assert invite_text(LONG, piped(b"")) == LONG
    assert invite_text("@/a/file", piped(b"")) == "@/a/file"


def test_an_endless_input_is_not_read_to_its_end() -> None:
    with open("/dev/zero", encoding="utf-8") as endless, pytest.raises(UserError, match="is not an invite"):
        Invite.decode(invite_text("-", endless))


@pytest.mark.parametrize(("argument", "data"), [("-", b""), ("-", b" \n"), ("", b"")])
def test_an_empty_invite_is_said_to_be_none(argument: str, data: bytes) -> None:
    with pytest.raises(UserError, match="no invite"):
        invite_text(argument, piped(data))


def test_without_an_argument_and_without_a_terminal_nobody_is_asked() -> None:
    with pytest.raises(UserError, match=r"^there is no invite: give @FILE, or - .*; see --help$"):
        invite_text(None, piped(LONG.encode()))


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (LONG.encode() + b"\n", LONG),
        (b"one\rtwo\n", "one"),
        (b"onf\x7fe\n", "one"),
        (b"one\x04", "one"),
    ],
    ids=["longer than a terminal's line", "a carriage return ends it", "mended", "end of input"],
)
def test_a_person_is_asked_and_nothing_is_shown(monkeypatch: pytest.MonkeyPatch, typed: bytes, read: str) -> None:
    prompt = Prompt()
    monkeypatch.setattr(sys, "stderr", prompt)
    outer, inner = pty.openpty()
    shown = bytearray()

    def watch() -> None:
        while piece := os.read(outer, 65536):
            shown.extend(piece)
            if b"end" in shown:
                return

    watching = threading.Thread(target=watch)
    watching.start()
    typing = threading.Thread(target=_type, args=(outer, prompt.asked, typed))
    typing.start()
    with os.fdopen(inner, "r+b", buffering=0) as raw, io.TextIOWrapper(raw, write_through=True) as terminal:
        assert invite_text(None, terminal) == read
        typing.join()
        os.write(inner, b"end")
        watching.join()
    os.close(outer)
    assert bytes(shown) == b"end"


class Prompt(io.StringIO):
    """Standard error, which tells when a question was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def flush(self) -> None:
        self.asked.set()


def _type(outer: int, asked: threading.Event, typed: bytes) -> None:
    """Type what is asked for, in pieces that a terminal has room for."""
    asked.wait()
    for first in range(0, len(typed), 1024):
        os.write(outer, typed[first : first + 1024])


@pytest.mark.process
def test_a_node_that_reads_its_invite_does_not_have_it_on_its_command_line(tmp_path: Path) -> None:
    """It reads it all the same: the address at which nobody is there is named."""
    command = [
        str(Path(sys.executable).parent / "dtfm-node"),
        "join",
        "--yes",
        "-",
        "--state-dir",
        str(tmp_path / "node"),
    ]
    with subprocess.Popen(
        [*command, "--timeout", "1"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(INVITE.encode() + "\n")
        process.stdin.close()
        first = process.stderr.readline()  # it runs, and has read it
        listed = Path(f"/proc/{process.pid}/cmdline").read_text()
        said = first + process.stderr.read()
    assert process.returncode == 2
    assert "no coordinator answers where the invite says" in said
    assert "127.0.0.1:9: " in said
    assert INVITE.encode() not in listed
    assert "\0-\0" in listed
