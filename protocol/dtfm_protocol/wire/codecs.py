"""Wire codecs, which turn a tensor into bytes between two peers, and back. Pure, on whatever device the tensor is.

Each codec turns `n` fp32 values into a run of bytes whose length follows from `n` alone, so that a receiver knows what
is due before it comes.
"""

import math
from typing import Any, Protocol

import torch

from dtfm_protocol.errors import Refused
from dtfm_protocol.wire.codec_sizes import BLOCK as BLOCK
from dtfm_protocol.wire.codec_sizes import SCALE_BYTES, CodecName
from dtfm_protocol.wire.codec_sizes import payload_bytes as payload_bytes

Bytes = bytes | bytearray | memoryview


class _Codec(Protocol):
    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return uint8 `[payload_bytes]` of flat, contiguous values."""

    def decode(self, data: torch.Tensor, values: int) -> torch.Tensor:
        """Return fp32 `[values]`; it may share memory with `data`."""


class _Plain:
    """A codec of each value in the wire's own dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._dtype).view(torch.uint8)

    def decode(self, data: torch.Tensor, values: int) -> torch.Tensor:
        return data.view(self._dtype).float()


class _Half:
    """A codec of fp16 relative to the largest magnitude, which goes before: gradients are below fp16's normal range."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        values = values.float()
        largest = values.abs().amax(0, keepdim=True)
        scale = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
        return torch.cat([scale.view(torch.uint8), (values / scale).half().view(torch.uint8)])

    def decode(self, data: torch.Tensor, values: int) -> torch.Tensor:
        scale = data[:SCALE_BYTES].clone().view(torch.float32)
        return data[SCALE_BYTES:].view(torch.float16).float().mul_(scale)


class _Blockwise:
    """A codec of int8 relative to the largest magnitude of each block of `BLOCK` values; the fp32 scales go before.

    As Dettmers et al., arXiv 2110.02861, do for optimizer states, here with evenly spaced levels.
    """

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        count, blocks = len(values), -(-len(values) // BLOCK)
        coded = torch.empty(payload_bytes("int8", (count,)), dtype=torch.uint8, device=values.device)
        scales = coded[: SCALE_BYTES * blocks].view(torch.float32)
        levels = coded[SCALE_BYTES * blocks :].view(torch.int8)
        whole = count - count % BLOCK
        for start, end, first, width in ((0, whole, 0, BLOCK), (whole, count, whole // BLOCK, count - whole)):
            if start == end:
                continue
            block = values[start:end].float().view(-1, width)
            scale = block.abs().amax(1, keepdim=True).div_(127)
            scales[first : first + len(scale)] = scale[:, 0]
            levels[start:end] = (block / torch.where(scale > 0, scale, 1.0)).round_().clamp_(-127, 127).view(-1)
        return coded

    def decode(self, data: torch.Tensor, values: int) -> torch.Tensor:
        blocks = -(-values // BLOCK)
        scales = data[: SCALE_BYTES * blocks].view(torch.float32)
        decoded = data[SCALE_BYTES * blocks :].view(torch.int8).float()
        whole = values - values % BLOCK
        decoded[:whole].view(-1, BLOCK).mul_(scales[: whole // BLOCK, None])
        decoded[whole:].mul_(scales[-1:])
        return decoded


_CODECS: dict[CodecName, _Codec] = {
    "fp32": _Plain(torch.float32),
    "bf16": _Plain(torch.bfloat16),
    "fp16": _Half(),
    "int8": _Blockwise(),
}


def encode(tensor: torch.Tensor, codec: CodecName) -> torch.Tensor:
    """Encode a floating tensor by value (row-major, little-endian): uint8 `[payload_bytes]` on its device.

    In fp32 a contiguous tensor is not copied: the result shares its memory. What is not finite does not become finite.
    """
    flat = tensor.detach().reshape(-1)
    if not len(flat):
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return _CODECS[codec].encode(flat)


def decode(data: torch.Tensor, codec: CodecName, shape: tuple[int, ...]) -> torch.Tensor:
    """Decode what `encode` gives: an fp32 tensor of `shape` on the device of the uint8 `data`, in fp32 sharing its
    memory.

    Raises:
        Refused: the length does not fit the shape, or a value is not finite.
    """
    if len(data) != payload_bytes(codec, shape):
        raise Refused(f"{len(data)} bytes are not a tensor of shape {shape} in {codec}")
    if not len(data):
        return torch.zeros(shape, device=data.device)
    values = _CODECS[codec].decode(data, math.prod(shape))
    if not is_finite(values):
        raise Refused("a tensor with values that are not finite")
    return values.view(shape)


def is_finite(values: torch.Tensor) -> bool:
    """Whether no value is a NaN or an infinity, in one pass and without memory."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def to_bytes(coded: torch.Tensor) -> memoryview:
    """Return the memory of a coded tensor on the CPU, not copied."""
    array: Any = coded.numpy()
    return memoryview(array)


def from_bytes(data: Bytes) -> torch.Tensor:
    """Return bytes that were received as a uint8 tensor, not copied where they may be written to."""
    if not len(data):
        return torch.empty(0, dtype=torch.uint8)
    writable = data if not memoryview(data).readonly else bytearray(data)
    return torch.frombuffer(writable, dtype=torch.uint8)
