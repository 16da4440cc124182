"""Shell at a terminal of its own, at which words are typed as a person would, while all that it shows is kept."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator

from docs.recording.cast import Piece

KEY_SECONDS = 0.045


class Session:
    """A shell that is recorded. Create it with `running`."""

    def __init__(self, outer: int) -> None:
        self._outer, self._since, self._before = outer, time.monotonic(), 0.0
        self._pace = 1.0
        self.pieces: list[Piece] = []
        """All that was shown."""

    @classmethod
    @contextlib.contextmanager
    def running(cls, environment: dict[str, str], columns: int, rows: int) -> Iterator["Session"]:
        """Start a shell that is ended with the block."""
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
            env=environment | {"PS1": r"\[\e[32m\]$\[\e[0m\] ", "TERM": "xterm", "COLUMNS": str(columns)},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inner)
        try:
            yield cls(outer)
        finally:
            os.close(outer)  # hangs up on the shell and what it runs
            shell.wait()

    @property
    def shown(self) -> str:
        """All that was shown, as text."""
        return "".join(piece.data for piece in self.pieces)

    def type(self, words: str) -> None:
        """Type words, key by key."""
        for key in words:
            os.write(self._outer, key.encode())
            self.watch(KEY_SECONDS)

    def hurry(self, pace: float) -> None:
        """From now on, count time as if all went so many times as fast: a recording need not be as long as a run."""
        self._before, self._since, self._pace = self._now(), time.monotonic(), pace

    def watch(self, seconds: float) -> None:
        """Keep what is shown for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._take(left)

    def until(self, is_so: Callable[[str], bool], seconds: float) -> None:
        """Keep what is shown until that is so of all of it.

        Raises:
            TimeoutError: it is not so within the seconds.
        """
        end = time.monotonic() + seconds
        while not is_so(self.shown):
            if time.monotonic() > end:
                raise TimeoutError(f"it was not shown within {seconds:g} s; the end of what was: {self.shown[-500:]}")
            self._take(1.0)

    def _take(self, seconds: float) -> None:
        if select.select([self._outer], [], [], seconds)[0]:
            data = os.read(self._outer, 65536).decode(errors="replace")
            self.pieces.append(Piece(self._now(), data))

    def _now(self) -> float:
        return self._before + (time.monotonic() - self._since) / self._pace
