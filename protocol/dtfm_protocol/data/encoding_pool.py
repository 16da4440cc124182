"""A pool of workers that turn pieces of text into tokens at the same time; all comes in the pieces' order."""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Self

from dtfm_protocol.data.encoding_worker import EncodingWorker
from dtfm_protocol.data.piece_encoder import EncodedPart, PieceEncoder
from dtfm_protocol.data.text_pieces import TextPiece
from dtfm_protocol.job.data_table import Data

AHEAD_PIECES = 2
"""Pieces for each worker that are begun before the first of them is taken."""
WAITING_PARTS = 8
"""Parts of a piece that wait to be taken; then its worker waits."""
LOOK_SECONDS = 0.1

Parts = queue.Queue[EncodedPart | BaseException]
Encoded = tuple[TextPiece, Iterator[EncodedPart]]
"""A piece, and its parts, which are to be taken before those of the next one."""


class EncodingPool:
    """A pool of workers. Create it with `of`."""

    def __init__(self) -> None:
        self._workers: list[EncodingWorker] = []
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._pieces: queue.Queue[tuple[TextPiece, Parts]] = queue.Queue()

    @classmethod
    @contextlib.contextmanager
    def of(cls, data: Data, tokenizer: Any, workers: int) -> Iterator[Self]:
        """Start workers; they end with the block, at once."""
        pool = cls()
        try:
            for _ in range(workers):
                pool._workers.append(EncodingWorker(data, tokenizer))
                pool._threads.append(threading.Thread(target=pool._serve, args=(pool._workers[-1],), daemon=True))
                pool._threads[-1].start()
            yield pool
        finally:
            pool._ended.set()
            for worker in pool._workers:
                worker.end()
            for thread in pool._threads:
                thread.join()

    def run(self, pieces: Iterable[TextPiece]) -> Iterator[Encoded]:
        """Encode pieces, of which few are drawn ahead.

        Raises:
            UserError: where its parts are taken: a piece's file is out of reach, or a worker has ended.
        """
        waiting: deque[tuple[TextPiece, Parts]] = deque()
        for piece in pieces:
            parts: Parts = queue.Queue(WAITING_PARTS)
            waiting.append((piece, parts))
            self._pieces.put((piece, parts))
            if len(waiting) > AHEAD_PIECES * len(self._workers):
                first, its_parts = waiting.popleft()
                yield first, _taken(its_parts)
        for first, its_parts in waiting:
            yield first, _taken(its_parts)

    def _serve(self, worker: EncodingWorker) -> None:
        while not self._ended.is_set():
            try:
                piece, parts = self._pieces.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            try:
                for part in worker.parts(piece):
                    if not self._put(parts, part):
                        return
            except BaseException as error:  # noqa: BLE001 - it is raised where the piece is taken
                self._put(parts, error)

    def _put(self, parts: Parts, part: EncodedPart | BaseException) -> bool:
        while not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                parts.put(part, timeout=LOOK_SECONDS)
                return True
        return False


def _taken(parts: Parts) -> Iterator[EncodedPart]:
    while True:
        part = parts.get()
        if isinstance(part, BaseException):
            raise part
        yield part
        if part.rows is not None:
            return


@contextlib.contextmanager
def encoding(data: Data, tokenizer: Any, pieces: Iterable[TextPiece], workers: int) -> Iterator[Iterator[Encoded]]:
    """Encode pieces with so many workers, or with one or none in this process, one piece after the other."""
    if workers > 1:
        with EncodingPool.of(data, tokenizer, workers) as pool:
            yield pool.run(pieces)
    else:
        encoder = PieceEncoder(data, tokenizer)
        yield ((piece, encoder.parts(piece.source, piece.file, piece.cut)) for piece in pieces)
