"""The layout of samples in bins of a sequence's length: several side by side, or each in a bin of its own (pure).

A window of the corpus is a bin and the token after it. As that one begins the next bin, and with it a segment, nothing
of it is learned from this one.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.marks import BEGINS, TARGET, Marks
from dtfm_protocol.data.sample_encoding import Sample
from dtfm_protocol.data.token_shards import Tokens

OPEN_BINS = 256
"""Bins that wait for what fits into what is left of them: so many that little is left over, and so few that they take
no memory to speak of."""


class Bin(NamedTuple):
    """A full bin, the rest of it filled up."""

    tokens: Tokens
    """Shape [sequence_length]."""
    marks: npt.NDArray[np.uint8]
    """Shape [sequence_length]."""


@dataclass
class PackingCounts:
    """What was laid out so far."""

    samples: int = 0
    """Documents, with repetitions."""
    bins: int = 0
    targets: int = 0
    """Tokens that are learned."""
    padding: int = 0
    """Tokens that fill bins up."""
    cut: int = 0
    """Samples of which only the beginning is there, as they are longer than a bin."""
    longest: int = 0
    """Tokens of the longest of those."""
    empty: int = 0
    """Samples that are left out, as nothing of what is there of them is learned."""


class OpenBins(NamedTuple):
    """The bins of a packer that are not full yet, in the order in which they were opened."""

    tokens: Tokens
    """What is in them, one after the other: [tokens]."""
    marks: Marks
    """Shape [tokens]."""
    sizes: npt.NDArray[np.int64]
    """Tokens in each: [bins]."""
    numbers: npt.NDArray[np.int64]
    """The number of each, of all that were ever opened: [bins]."""


class Packer:
    """The layout of samples that come one after the other: the same for the same samples.

    Where several may share a bin, each goes where the least is left after it, of the bins that are open (best fit);
    where none of these has room, a new one is opened, and of too many the fullest is closed.
    """

    def __init__(self, length: int, padding: int, *, shared: bool) -> None:
        """Begin.

        Args:
            length: tokens of a bin, at least 2.
            padding: token with which bins are filled up.
            shared: whether samples share bins; else each has one of its own.
        """
        self._length, self._padding, self._most = length, padding, OPEN_BINS if shared else 0
        self._open: list[tuple[int, int]] = []
        """Room in each open bin, and its number, ascending."""
        self._held: dict[int, list[tuple[Tokens, Marks]]] = {}
        """Tokens and marks of what is in each open bin, by its number."""
        self.counts = PackingCounts()

    def bins(self, samples: Iterable[Sample]) -> Iterator[Bin]:
        """Lay samples out, and yield bins as they are closed, at the end all that are open."""
        yield from self.filled(samples)
        yield from self.closed()

    def filled(self, samples: Iterable[Sample]) -> Iterator[Bin]:
        """Lay samples out, and yield bins as they are closed; others stay open for what comes after."""
        for sample in samples:
            for piece in self._pieces(sample):
                yield from self._place(piece)

    def closed(self) -> Iterator[Bin]:
        """Close all bins that are open."""
        for _, number in sorted(self._open, key=lambda one: one[1]):
            yield self._closed(number)
        self._open = []

    def open_bins(self) -> OpenBins:
        """Return the bins that are open: with `counts` all that decides how what comes next is laid out."""
        numbers = sorted(self._held)
        held = [part for number in numbers for part in self._held[number]]
        return OpenBins(
            np.concatenate([np.empty(0, dtype=np.int64), *(tokens for tokens, _ in held)]),
            np.concatenate([np.empty(0, dtype=np.uint8), *(marks for _, marks in held)]),
            np.array([sum(len(tokens) for tokens, _ in self._held[number]) for number in numbers], dtype=np.int64),
            np.array(numbers, dtype=np.int64),
        )

    def go_on(self, bins: OpenBins, counts: PackingCounts) -> None:
        """Go on where another packer was, which had these open bins and counts."""
        self.counts = counts
        ends = np.cumsum(bins.sizes)
        for number, size, end in zip(bins.numbers.tolist(), bins.sizes.tolist(), ends.tolist(), strict=True):
            self._held[number] = [(bins.tokens[end - size : end], bins.marks[end - size : end])]
            insort(self._open, (self._length - size, number))

    def _pieces(self, sample: Sample) -> Iterator[Sample]:
        """Yield what of a sample is laid out: pieces of a bin's length, which overlap by a token, so that each token
        but the first is foretold once; of a sample that makes no sense in pieces, the first alone."""
        counts, count = self.counts, len(sample.tokens)
        has_any = False
        for first in range(0, max(1, count - 1), self._length - 1):
            after = first + self._length
            piece = Sample(sample.tokens[first:after], sample.is_target[first:after], sample.is_whole)
            if piece.is_target[1:].any():
                has_any = True
                yield piece
            if sample.is_whole and count > self._length:
                counts.cut += 1
                counts.longest = max(counts.longest, count)
                break
        counts.samples += 1
        counts.empty += not has_any

    def _place(self, piece: Sample) -> Iterator[Bin]:
        size = len(piece.tokens)
        at = bisect_left(self._open, (size, 0))
        if at < len(self._open):
            room, number = self._open.pop(at)
        else:
            # As many were opened as are closed and open.
            room, number = self._length, self.counts.bins + len(self._held)
            self._held[number] = []
        marks = (TARGET * piece.is_target).astype(np.uint8)
        marks[0] = BEGINS
        self._held[number].append((piece.tokens, marks))
        if room == size:
            yield self._closed(number)
            return
        insort(self._open, (room - size, number))
        if len(self._open) > self._most:
            _, fullest = self._open.pop(0)
            yield self._closed(fullest)

    def _closed(self, number: int) -> Bin:
        pieces = self._held.pop(number)
        tokens = np.full(self._length, self._padding, dtype=np.int64)
        marks = np.zeros(self._length, dtype=np.uint8)
        at = 0
        for its_tokens, its_marks in pieces:
            after = at + len(its_tokens)
            tokens[at:after], marks[at:after] = its_tokens, its_marks
            at = after
        if at < self._length:
            marks[at] = BEGINS
        counts = self.counts
        counts.bins += 1
        counts.padding += self._length - at
        counts.targets += int((marks == TARGET).sum())
        return Bin(tokens, marks)


def closing(padding: int) -> Bin:
    """Return the one token that stands behind the last bin, so that this one is a window, too."""
    return Bin(np.array([padding], dtype=np.int64), np.array([BEGINS], dtype=np.uint8))
