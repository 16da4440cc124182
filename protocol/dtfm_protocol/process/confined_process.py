"""A confined process: a copy of this one, made before there are threads, that works once within bounds of memory and
time. Whatever the work comes to, this process has lost nothing."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NoReturn, Self

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.child_processes import end_with_parent
from dtfm_protocol.process.memory_limit import data_bytes, hold_data_to
from dtfm_protocol.process.quantities import bytes_in_words

Work = Callable[[bytes], bytes]
"""A function of bytes, run in the confined process."""
_GRACE_SECONDS = 5
_BUSY = 10
"""So many times as long may work take by the clock: what else keeps the machine busy is not its fault."""
# Bytes alone go over the pipe: what the copy has worked on comes from strangers, and nothing of it is unpickled here.
_BOUNDS = struct.Struct("<QQ")
_DONE, _TOO_LARGE = b"\x01", b"\x00"


class ConfinedProcess:
    """A copy of this process that waits for work. Create it with `forked`."""

    def __init__(self, pid: int, pipe: Connection) -> None:
        self._pid, self._pipe = pid, pipe

    @classmethod
    @contextlib.contextmanager
    def forked(cls, work: Work) -> Iterator[Self]:
        """Copy this process, which has no threads yet; the copy ends with the block, or with this process.

        Args:
            work: what the copy does when it is asked to, once. All that it imports is best imported before.
        """
        pipe, inner = multiprocessing.Pipe()
        end = end_with_parent(signal.SIGKILL)
        pid = os.fork()
        if not pid:
            _live(inner, work, end)
        inner.close()
        process = cls(pid, pipe)
        try:
            yield process
        finally:
            process._end()
            pipe.close()

    async def run(self, data: bytes, *, memory: int, seconds: float) -> bytes:
        """Return what the work makes of `data`.

        Args:
            memory: bytes that it may take beside those that the copy began with.
            seconds: seconds of a processor that it may take.

        Raises:
            UserError: it took more, or has ended without an answer.
        """
        too_long = UserError(
            f"it takes more than {seconds:g} s of a processor, or {_BUSY} times as long on a busy machine"
        )
        try:
            self._pipe.send_bytes(_BOUNDS.pack(memory, max(1, int(seconds))) + data)
            if not await asyncio.to_thread(self._pipe.poll, _BUSY * seconds):
                raise too_long
            answer = await asyncio.to_thread(self._pipe.recv_bytes)
        except (OSError, EOFError):
            if self._end() == signal.SIGXCPU:
                raise too_long from None
            raise UserError("the process that works it out has ended without an answer") from None
        finally:
            self._end()
        if answer[:1] != _DONE:
            raise UserError(f"it takes more than {bytes_in_words(memory)} of memory")
        return answer[1:]

    def _end(self) -> int:
        """End the copy, whatever it is doing; whoever still waits for its answer hears of it. Return the signal that
        ended it; 0: none did, or it had ended before."""
        pid, self._pid = self._pid, 0
        if not pid:
            return 0
        os.kill(pid, signal.SIGKILL)  # nobody has waited for it, so that the number is its own
        _, status = os.waitpid(pid, 0)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _live(pipe: Connection, work: Work, end: Callable[[], None] | None) -> NoReturn:
    """Wait for work, do it, and end this process, which is the copy."""
    try:
        if end is not None:
            end()
        gc.freeze()  # the collector would write to each page that the two still share
        os.setsid()  # Ctrl+C is for the process that was copied
        for descriptor in os.listdir("/dev/fd"):  # its locks and sockets are not this one's
            if int(descriptor) > 2 and int(descriptor) != pipe.fileno():
                with contextlib.suppress(OSError):
                    os.close(int(descriptor))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.close(nowhere)
        asked = pipe.recv_bytes()
        memory, seconds = _BOUNDS.unpack_from(asked)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + _GRACE_SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        now = data_bytes()
        if now is not None:
            hold_data_to(now + memory)
        try:
            answer = _DONE + work(asked[_BOUNDS.size :])
        except MemoryError:
            answer = _TOO_LARGE
        pipe.send_bytes(answer)
    except BaseException:  # noqa: BLE001 - nothing of the copy may run on into what the other one was doing
        os._exit(1)
    os._exit(0)


def is_possible() -> bool:
    """Whether this system makes copies of processes that are safe to work in, and bounds their memory."""
    return sys.platform.startswith("linux")
