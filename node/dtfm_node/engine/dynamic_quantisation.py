"""Moments in 8 bits by block-wise dynamic quantisation (Dettmers et al., arXiv 2110.02861), with the same bits on every
device.

A value is kept as one of 256 levels, relative to the largest magnitude of its block. Levels lie between 0 and 1 in
decades, which have twice as many the larger they are: so small values keep their order of magnitude, and large ones two
digits. Of a moment without a sign none is zero, where the paper has a zero: a second moment that is rounded to zero
beside a first that is not would divide it by epsilon alone (as Li et al., arXiv 2309.01507, found at 4 bits).
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dtfm_protocol.checkpoint.state_slots import MOMENT_BLOCK

_DECADES = 7
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-126, float(np.finfo(np.float32).max)
"""fp32's normal range: within it a value of a block divided by its scale is no NaN, of zeros and infinities either."""


class Levels(NamedTuple):
    """The 256 levels of a moment, and what finds the nearest."""

    values: torch.Tensor
    """The levels, ascending; fp32 [256]."""
    middles: torch.Tensor
    """The middle between each level and the next, and infinity after the last; fp32 [256]."""
    lowest: torch.Tensor
    """Level of the lowest of the values whose upper 16 bits are the index; int32 [65536]. No two middles share those
    bits, so that all others with them have this level or the next."""


class BlockwiseMoment(NamedTuple):
    """A moment of a parameter that is kept in 8 bits."""

    codes: torch.Tensor
    """Level of each value; uint8 [elements]."""
    scales: torch.Tensor
    """Largest magnitude of each block; fp32 [blocks]."""
    levels: Levels

    def widened(self, first: int, end: int, room: torch.Tensor) -> torch.Tensor:
        """Return the values in `room`, as `KeptForm.widened`: levels times scales, each product rounded once."""
        torch.index_select(self.levels.values, 0, self.codes[first:end].to(torch.int32), out=room)
        for block, scale in self._blocks(first, room):
            block.mul_(scale)
        return room

    def keep(self, first: int, end: int, values: torch.Tensor) -> None:
        """Keep the level nearest to each value, as `KeptForm.keep`; of two that are as near, the lower."""
        for block, scale in self._blocks(first, values):
            torch.clamp(block.abs().amax(1, keepdim=True), _SMALLEST_SCALE, _LARGEST_SCALE, out=scale)
            block.div_(scale)
        upper = (values.view(torch.int32) >> 16).bitwise_and_(0xFFFF)
        codes = self.levels.lowest.index_select(0, upper)
        codes += values > self.levels.middles.index_select(0, codes)
        self.codes[first:end] = codes

    def _blocks(self, first: int, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield `values`, of which the first is value `first`, as whole blocks [blocks, values] and a short one after
        them, with their scales [blocks, 1]."""
        block, whole = first // MOMENT_BLOCK, len(values) // MOMENT_BLOCK
        if whole:
            yield values[: whole * MOMENT_BLOCK].view(whole, MOMENT_BLOCK), self.scales[block : block + whole, None]
        if len(values) > whole * MOMENT_BLOCK:
            last = block + whole
            yield values[whole * MOMENT_BLOCK :].view(1, -1), self.scales[last : last + 1, None]


@functools.cache
def levels_of(signed: bool, device: torch.device) -> Levels:
    """Return the levels of moments with a sign, or without one, on `device`."""
    values = _levels(signed)
    middles = np.full(256, np.inf, np.float32)
    # A sum of two of them is exact in fp64, and rounded once.
    middles[:-1] = (values[:-1].astype(np.float64) + values[1:]) / 2
    upper = np.arange(1 << 16, dtype=np.uint32)
    lowest = (upper << 16 | np.where(upper >> 15, 0xFFFF, 0).astype(np.uint32)).view(np.float32)
    first = np.searchsorted(middles, lowest).astype(np.int32).clip(max=255)
    return Levels(*(torch.from_numpy(one).to(device) for one in (values, middles, first)))


def _levels(signed: bool) -> npt.NDArray[np.float32]:
    """Return the levels, each a quotient of whole numbers, rounded to fp64 and then to fp32.

    The decade below 10^-d is cut into n parts of equal width, whose middles are levels. With a sign, the decades below
    1, 0.1, ... have 64, 32, ... parts, on both sides of zero; without, twice as many, and there is one decade more. 1
    is a level, -1 is none.
    """
    found = [0.0, 1.0] if signed else [1.0]
    for decade in range(_DECADES if signed else _DECADES + 1):
        parts = (64 if signed else 128) >> decade
        for part in range(parts):
            level = (2 * parts + 9 * (2 * part + 1)) / (20 * parts * 10**decade)
            found += [level, -level] if signed else [level]
    return np.array(sorted(found), dtype=np.float32)
