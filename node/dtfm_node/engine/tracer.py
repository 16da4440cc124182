"""Tracer of what this node did and when, in a file for `dtfm-coordinator trace` and for Perfetto."""

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.process.trace_format import (
    CLOSING,
    LANES,
    LARGEST_FILE,
    OPENING,
    Lane,
    Rows,
    TraceHeader,
    TraceSpan,
    file_name,
    header_events,
    lane_events,
    metadata_event,
    span_event,
)

FLUSH_SECONDS = 1.0
"""What a node that is killed loses of its trace."""
FLUSH_SPANS = 2_000
"""Number of spans that are written at once before that time is over: a few milliseconds of work."""
MOST_PENDING = 50_000
"""Number of spans that wait for a disk that hangs; further ones are dropped, and counted."""


class Tracer(Protocol):
    """Interface of what takes note of the engine's work."""

    def span(self, lane: Lane, name: str, begin: float, end: float, /, **args: str | int) -> None:
        """Note work that was done from `begin` to `end`, in seconds of `time.monotonic()`; from any thread.

        Args:
            args: shown with the span. A send or a receive has peer (the other end), kind, step, index, group, plan, by
        which a send is matched with its receive.
        """


class NoTrace:
    """Tracer that takes no note."""

    def span(self, lane: Lane, name: str, begin: float, end: float, /, **args: str | int) -> None:
        """Take no note of the span."""


NO_TRACE: Tracer = NoTrace()


class TraceFile:
    """Trace of one node, written while it runs: open it with `open`, use it in a `with` block.

    Spans are kept in memory and written about once a second by whoever notes the next one. A file that cannot be
    written any further ends with a warning; the node goes on.
    """

    def __init__(self, path: Path, file: FileIO, header: TraceHeader, largest: int, most_pending: int) -> None:
        self.path = path
        self._largest, self._most_pending = largest, most_pending
        self._file: FileIO | None = file
        self._pid = header.pid
        self._pending: deque[tuple[Lane, str, float, float, dict[str, str | int]]] = deque()
        self._writing = threading.Lock()
        self._due = time.monotonic() + FLUSH_SECONDS
        self._dropped = 0
        self._rows: dict[Lane, Rows] = {lane: Rows() for lane in LANES}
        self._named: set[int] = set()
        self._size = 0
        self._write(OPENING + "".join(f"{event},\n" for event in header_events(header)))

    @classmethod
    def open(cls, folder: Path, peer_id: str, *, largest: int = LARGEST_FILE, most_pending: int = MOST_PENDING) -> Self:
        """Begin a new file in `folder`, which is made if it does not exist; no existing file is touched.

        Args:
            largest: bytes of the file at most.
            most_pending: see `MOST_PENDING`.

        Raises:
            UserError: `folder` is not writable.
        """
        wall = time.time() - time.monotonic()
        header = TraceHeader(peer=peer_id, label=short(peer_id), wall=wall, pid=os.getpid())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path, file = _new_file(folder, peer_id)
            try:
                return cls(path, file, header, largest, most_pending)
            except OSError:
                file.close()
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise UserError(f"cannot write a trace to {folder}: {error.strerror}; choose another --trace") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def span(self, lane: Lane, name: str, begin: float, end: float, /, **args: str | int) -> None:
        """Note a span, as `Tracer` says. After `close` it is dropped."""
        if self._file is None:
            return
        pending = self._pending
        if len(pending) >= self._most_pending:
            self._dropped += 1
            return
        pending.append((lane, name, begin, end, args))
        if (end >= self._due or len(pending) >= FLUSH_SPANS) and self._writing.acquire(blocking=False):
            try:
                self._due = end + FLUSH_SECONDS
                self._flush()
            finally:
                self._writing.release()

    def close(self) -> None:
        """Write the spans that are pending, and the file's end; a second call does nothing."""
        with self._writing:
            self._flush()
            self._end()
        if self._dropped:
            log.warning("the trace %s lacks %d spans: the disk was too slow", self.path, self._dropped)
            self._dropped = 0

    def _flush(self) -> None:
        """Write the spans that are pending. Only a thread that holds the lock may call this, or what it calls."""
        if self._file is None:
            return
        # As many as there are now: others may go on adding.
        text = "".join(self._lines(*self._pending.popleft()) for _ in range(len(self._pending)))
        if self._size + len(text) > self._largest - 1000:
            log.warning("the trace %s ends here: it has %s, the most it may", self.path, bytes_in_words(self._largest))
            self._end()
            return
        try:
            self._write(text)
        except OSError as error:
            log.warning("the trace %s ends here, training goes on: %s", self.path, error.strerror)
            self._give_up()

    def _lines(self, lane: Lane, name: str, begin: float, end: float, args: dict[str, str | int]) -> str:
        """Return a span's line, after those that name its row where it is the first there."""
        begin_ns = round(begin * 1e9)
        end_ns = max(round(end * 1e9), begin_ns + 1)  # of no length at all, it could not be seen
        row = self._rows[lane].place(begin_ns, end_ns)
        tid = 1 + LANES.index(lane) + row * len(LANES)
        events = [span_event(TraceSpan(lane, name, begin_ns, end_ns, args), self._pid, tid)]
        if tid not in self._named:
            self._named.add(tid)
            events[:0] = lane_events(lane, row, self._pid, tid)
        return "".join(f"{event},\n" for event in events)

    def _write(self, text: str) -> None:
        assert self._file is not None
        data = memoryview(text.encode())
        self._size += len(data)
        while data:
            data = data[self._file.write(data) :]

    def _end(self) -> None:
        if self._file is None:
            return
        # JSON allows no comma before the closing bracket, so a last event without one goes before it.
        try:
            self._write(metadata_event("dtfm_end", self._pid, self._pid, {}) + f"\n{CLOSING}")
        except OSError as error:
            log.warning("the trace %s lacks its end: %s", self.path, error.strerror)
        self._give_up()

    def _give_up(self) -> None:
        file, self._file = self._file, None
        self._pending.clear()
        if file is not None:
            with contextlib.suppress(OSError):  # that the disk is full is known by now
                file.close()


def _new_file(folder: Path, peer_id: str) -> tuple[Path, FileIO]:
    for number in itertools.count(1):
        path = folder / file_name(peer_id, number)
        try:
            return path, FileIO(path, "xb")
        except FileExistsError:
            continue
    raise AssertionError("counting does not end")
