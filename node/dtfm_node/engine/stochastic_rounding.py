"""Weights that are kept in bf16: an update, made in fp32, is rounded up or down at random (Gupta et al., arXiv
1502.02551; of bf16 weights Zamirai et al., arXiv 2010.06192).

To the nearest, an update of less than half a step of bf16, 1/512 of the weight, would be lost each time. Rounded up as
often as it is near the upper neighbour, nothing is lost on average. What decides is no generator but a hash of the
job's seed, the step, the parameter's name and the value's place in the parameter, in whole numbers: replicas on unlike
devices have the same bits, however the model is cut.
"""

import hashlib
from typing import NamedTuple

import torch

_LOWER_BITS = 0xFFFF
"""Those that a number has in fp32 and not in bf16."""


class StochasticBf16(NamedTuple):
    """A parameter's weights, which are kept in bf16."""

    values: torch.Tensor
    """bf16 [elements]."""
    key: int
    """What the hash takes beside a value's place (`rounding_key`)."""

    def widened(self, first: int, end: int, room: torch.Tensor) -> torch.Tensor:
        """Return the values in `room`, as `KeptForm.widened`: the same numbers."""
        return room.copy_(self.values[first:end])

    def keep(self, first: int, end: int, values: torch.Tensor) -> None:
        """Keep one of the two neighbours in bf16 of each value, as `KeptForm.keep`.

        A number below 2^16 is added to the bits that are cut off then: it carries as often as the number that they
        make is large. What bf16 has is kept as it is.
        """
        bits = values.view(torch.int32)
        bits += hashed(first, end, self.key, values.device)
        bits &= ~_LOWER_BITS
        self.values[first:end] = values


def rounding_key(seed: int, step: int, name: str) -> int:
    """Return a key, int32, for the values of the parameter `name` in one step of a job."""
    digest = hashlib.sha256(f"{seed}\n{step}\n{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big", signed=True)


def hashed(first: int, end: int, key: int, device: torch.device) -> torch.Tensor:
    """Return a number below 2^16 for each place `[first, end)`, int32: the upper half of MurmurHash3's 32-bit finaliser
    (Appleby; public domain) of the place, modulo 2^32, combined with `key` by exclusive or."""
    bits = torch.arange(end - first, dtype=torch.int32, device=device)
    bits.add_(_signed(first)).bitwise_xor_(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits ^= _shifted(bits, shift)
        bits *= _signed(factor)
    return _shifted(bits, 16)  # the finaliser's last shift leaves these as they are


def _shifted(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Return the bits shifted to the right, with zeros at the left."""
    return (bits >> places).bitwise_and_((1 << 32 - places) - 1)


def _signed(number: int) -> int:
    """Return the number of int32 that has the same lower 32 bits."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
