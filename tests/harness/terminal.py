"""A program at a terminal of its own, at which a test types."""

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import termios
from collections.abc import Iterator, Sequence

from tests.harness.daemon import DEADLINE


class Terminal:
    """A program whose standard streams are one terminal. Create it with `running`."""

    def __init__(self, process: subprocess.Popen[bytes], outer: int) -> None:
        self._process, self._outer = process, outer
        self.shown = ""
        """All that the terminal has shown."""

    @classmethod
    @contextlib.contextmanager
    def running(cls, command: Sequence[str], environment: dict[str, str]) -> Iterator["Terminal"]:
        """Start a program that is ended with the block at the latest."""
        outer, inner = pty.openpty()
        try:
            process = subprocess.Popen(
                command, stdin=inner, stdout=inner, stderr=inner, env=environment, start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )  # fmt: skip
        finally:
            os.close(inner)
        try:
            yield cls(process, outer)
        finally:
            process.kill()
            process.wait()
            os.close(outer)

    def until(self, words: str) -> None:
        """Wait until the terminal has shown `words`.

        Raises:
            AssertionError: the program ends without, or says nothing for too long.
        """
        while words not in self.shown:
            assert self._more(), f"it never said {words!r}, but:\n{self.shown}"

    def type(self, keys: str) -> None:
        """Type `keys`, as a person would."""
        os.write(self._outer, keys.encode())

    def exit_code(self) -> int:
        """Wait for the program's end."""
        while self._more():
            pass
        return self._process.wait(DEADLINE)

    def _more(self) -> bool:
        """Wait for more to be shown; whether there is more."""
        if not select.select([self._outer], [], [], DEADLINE)[0]:
            return False
        try:
            piece = os.read(self._outer, 65536)
        except OSError:  # Linux says so that nobody has the other end open
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)
