"""The source of an invite's text: a file, standard input, a prompt, or the command line, which `ps` shows to all."""

import os
import sys
from typing import BinaryIO, Protocol

from dtfm_protocol.errors import UserError

STANDARD_INPUT = "-"
"""The argument that stands for an invite on standard input."""
_LIMIT = 1 << 18
"""Bytes that are read: several times the longest invite."""
_END_OF_INPUT, _ERASE = b"\x04", b"\x7f\x08"


class Input(Protocol):
    """Standard input, or what a test puts in its place."""

    @property
    def buffer(self) -> BinaryIO:
        """Its bytes."""

    def isatty(self) -> bool:
        """Whether a person types there."""

    def fileno(self) -> int:
        """Its file descriptor."""


def invite_text(argument: str | None, source: Input | None = None) -> str:
    """Return the text of the invite that a command was given, for `Invite.decode`.

    Args:
        argument: as the person wrote it: the text, `@FILE` (returned as it is), "-" for standard input, or None, for
            which the person is asked at the terminal; what is typed is not shown.
        source: standard input; None: the process's own.

    Raises:
        UserError: there is no invite, and nobody to ask.
    """
    given = source or sys.stdin
    if argument is None:
        if not given.isatty():
            raise UserError("there is no invite: give @FILE, or - and the invite on standard input; see --help")
        argument = _asked(given.fileno())
    elif argument == STANDARD_INPUT:
        argument = given.buffer.read(_LIMIT).decode(errors="replace")
    if not argument.strip():
        raise UserError("there is no invite: what was read is empty")
    return argument


def _asked(terminal: int) -> str:
    """Ask for a line at a terminal, which does not show it.

    `getpass` would do, but a terminal that assembles lines itself cuts them at 4,095 bytes.
    """
    import termios  # not on Windows, where this module must be there to say so

    before = termios.tcgetattr(terminal)
    quiet = termios.tcgetattr(terminal)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    try:
        termios.tcsetattr(terminal, termios.TCSADRAIN, quiet)
        print("invite (it is not shown): ", end="", file=sys.stderr, flush=True)
        return _line(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        print(file=sys.stderr)


def _line(terminal: int) -> str:
    line = bytearray()
    while len(line) < _LIMIT and (piece := os.read(terminal, 4096)):
        for number in piece:
            typed = bytes([number])
            if typed in (b"\n", b"\r", _END_OF_INPUT):
                return line.decode(errors="replace")
            if typed in _ERASE:
                del line[-1:]
            else:
                line += typed
    return line.decode(errors="replace")
