"""Marks of tokens: which are learned, and where what stands apart begins; a byte a token (pure)."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

TARGET = 1
"""Bit of a mark: the token is a target, so that its loss counts."""
BEGINS = 2
"""Bit of a mark: the token begins a segment, which attends to itself alone, with positions from 0. It is no target,
whatever its other bit says: nothing comes before it that could foretell it."""

Marks = npt.NDArray[np.integer[Any]]
"""Marks of tokens that follow each other."""


class SampleLayout(NamedTuple):
    """What a model has to know of a micro-batch besides its tokens."""

    positions: npt.NDArray[np.int64]
    """Place of each input in its segment, from 0: [batch, sequence_length]."""
    segments: npt.NDArray[np.int64]
    """Number of each input's segment in its sequence, from 0: [batch, sequence_length]."""
    is_target: npt.NDArray[np.bool_]
    """Whether the loss of each target counts, the token that comes after each input: [batch, sequence_length]."""


def sample_layout(marks: Marks) -> SampleLayout:
    """Return the layout of a micro-batch by the marks of its tokens, [batch, sequence_length + 1].

    A sequence's first input begins a segment whether or not it is marked.
    """
    begins = marks[:, :-1] & BEGINS != 0
    begins[:, 0] = True
    places = np.broadcast_to(np.arange(begins.shape[1], dtype=np.int64), begins.shape)
    firsts = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    return SampleLayout(places - firsts, np.cumsum(begins, axis=1, dtype=np.int64) - 1, are_targets(marks)[:, 1:])


def are_targets(marks: Marks) -> npt.NDArray[np.bool_]:
    """Return of which tokens the loss counts, in the shape of their marks."""
    found: npt.NDArray[np.bool_] = marks & (TARGET | BEGINS) == TARGET
    return found


def window_targets(marks: Marks, sequence_length: int) -> npt.NDArray[np.uint32]:
    """Count the targets of each window of marks that follow each other: [windows * sequence_length + 1] gives
    [windows]."""
    found: npt.NDArray[np.uint32] = are_targets(marks)[1:].reshape(-1, sequence_length).sum(axis=1, dtype=np.uint32)
    return found


class TargetCounter:
    """The counter of the targets of each window, while the marks of a corpus come."""

    def __init__(self, sequence_length: int) -> None:
        """Begin."""
        self._length = sequence_length
        self._left = np.empty(0, dtype=np.uint8)
        """Marks of the window that is not full, and the one before it."""
        self._counts: list[npt.NDArray[np.uint32]] = []

    def add(self, marks: Marks) -> None:
        """Take marks of tokens that come after those before: [tokens]."""
        self._left = np.concatenate([self._left, marks.astype(np.uint8)])
        if windows := (len(self._left) - 1) // self._length:
            whole = windows * self._length
            self._counts.append(window_targets(self._left[: whole + 1], self._length))
            self._left = self._left[whole:]

    def counts(self) -> npt.NDArray[np.uint32]:
        """Return the number of targets of each window, little-endian: [windows].

        Raises:
            ValueError: the tokens are not one more than those of a number of windows.
        """
        if len(self._left) != 1 or not self._counts:
            raise ValueError(f"{len(self._left)} tokens behind {len(self._counts)} runs of windows")
        return np.concatenate(self._counts).astype("<u4")
