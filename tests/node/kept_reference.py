"""What is kept in less than fp32, as numpy alone computes it: block-wise dynamic quantisation, stochastic rounding."""

from fractions import Fraction
from hashlib import sha256

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]
BLOCK = 256


def levels(signed: bool) -> Array:
    """The 256 levels: the middles of the parts of equal width into which each decade below 1 is cut."""
    found = [Fraction(1)]
    parts, top = (64 if signed else 128), Fraction(1)
    while parts >= 1:
        width = (top - top / 10) / parts
        middles = [top / 10 + width * part + width / 2 for part in range(parts)]
        found += middles + [-one for one in middles if signed]
        parts, top = parts // 2, top / 10
    found += [Fraction(0)] if signed else []
    assert len(found) == 256
    return np.array([np.float32(float(one)) for one in sorted(found)])


def quantised(values: Array, signed: bool) -> tuple[Codes, Array]:
    """The nearest level of each value relative to its block's largest, the lower of two; and those largest."""
    grid = levels(signed).astype(np.float64)
    middles = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    flat = values.ravel()
    codes, scales = np.empty(flat.size, np.uint8), np.empty(-(-flat.size // BLOCK), np.float32)
    for number, start in enumerate(range(0, flat.size, BLOCK)):
        block = flat[start : start + BLOCK]
        scales[number] = np.clip(np.abs(block).max(), np.finfo(np.float32).tiny, np.finfo(np.float32).max)
        codes[start : start + BLOCK] = (block[:, None] / scales[number] > middles).sum(1)
    return codes.reshape(values.shape), scales


def dequantised(codes: Codes, scales: Array, signed: bool) -> Array:
    """What codes and scales stand for."""
    return (levels(signed)[codes.ravel()] * np.repeat(scales, BLOCK)[: codes.size]).reshape(codes.shape)


def mixed(numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """MurmurHash3's 32-bit finaliser."""
    found: npt.NDArray[np.uint32] = numbers ^ numbers >> np.uint32(16)
    found = found * np.uint32(0x85EBCA6B)
    found = found ^ found >> np.uint32(13)
    found = found * np.uint32(0xC2B2AE35)
    return found ^ found >> np.uint32(16)


def rounded(values: Array, seed: int, step: int, name: str) -> Array:
    """Values that bf16 has, as fp32: up, where the bits that are cut off and the hash's upper half make a carry."""
    key = np.frombuffer(sha256(f"{seed}\n{step}\n{name}".encode()).digest()[:4], ">u4")[0]
    hashes = mixed(np.arange(values.size, dtype=np.uint32) ^ np.uint32(key)).reshape(values.shape)
    found: Array = ((values.view(np.uint32) + (hashes >> np.uint32(16))) & np.uint32(0xFFFF0000)).view(np.float32)
    return found
