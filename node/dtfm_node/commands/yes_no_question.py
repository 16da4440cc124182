"""A question to the person at the terminal, answered with yes or no."""

import os
import select
import signal
import sys

from dtfm_protocol.errors import UserError


def agreed(words: str, question: str, nobody: str, declined: str) -> bool:
    """Show `words`, ask `question`, and return whether the answer is yes; all else, an end of input too, is no.

    Args:
        nobody: says what to do where there is nobody to ask.
        declined: is said where the answer is no, or Ctrl+C.

    Raises:
        UserError: standard input or standard error is no terminal.
        KeyboardInterrupt: Ctrl+C was the answer.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(nobody)
    try:
        print(f"{words}\n\n{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = _line()
    except KeyboardInterrupt:
        print(f"\n{declined}", file=sys.stderr)
        raise
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    if answer.strip().lower() in {"y", "yes"}:
        return True
    print(declined, file=sys.stderr)
    return False


def _line() -> str:
    """Read a line from the terminal.

    A bare `readline` would miss a Ctrl+C that comes just before it begins to wait, and then wait for a line.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake)
    try:
        select.select([sys.stdin, woken], [], [])
        return sys.stdin.readline()
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)
