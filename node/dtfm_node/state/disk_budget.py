"""Budget of disk: how much a node keeps for the swarm, in all, and what is refused above it."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import GB, bytes_in_words

PART_OF_FREE = 0.5
"""Part of what is free on the disk that a node keeps at most, unless its owner says how much."""


def most_disk(gb: float | None, free: int, held: int) -> int:
    """Return the bytes that a node may keep in its state dir.

    Args:
        gb: GB that the owner allows; None: a part of what is free.
        free: bytes that are free on that disk.
        held: bytes that the state dir holds already.
    """
    return int(gb * GB) if gb is not None else held + int(PART_OF_FREE * free)


class DiskBudget:
    """Budget of the token shards, snapshots and copies in a state dir. Threads may share one.

    Args:
        limit: bytes in all; infinite where nobody has limited them.
    """

    def __init__(self, limit: float = float("inf")) -> None:
        self._limit = limit
        self._claimed = 0
        self._holders: list[Callable[[], int]] = []
        self._lock = threading.Lock()

    def counts(self, held: Callable[[], int]) -> None:
        """Count, from now on, what `held` returns: the bytes that somebody keeps on the disk."""
        self._holders.append(held)

    @property
    def room(self) -> float:
        """Bytes that may still be written; less than 0 where more is held than is allowed now."""
        return self._limit - self._claimed - sum(held() for held in self._holders)

    @contextlib.contextmanager
    def claimed(self, size: int, what: str) -> Iterator[None]:
        """Keep room for `size` bytes that are written within the block.

        Raises:
            UserError: there is not as much room; nothing was written.
        """
        with self._lock:
            if size > self.room:
                raise UserError(
                    f"{what} takes {bytes_in_words(size)} of disk and this node has {bytes_in_words(self.room)} "
                    f"left of the {bytes_in_words(self._limit)} that it keeps for the swarm: allow more with --disk"
                )
            self._claimed += size
        try:
            yield
        finally:
            with self._lock:
                self._claimed -= size
