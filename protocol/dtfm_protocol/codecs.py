"""Wire codecs: how a tensor becomes bytes between two peers, and back."""

from typing import Any

import numpy as np
import torch

from dtfm_protocol.errors import Refused
from dtfm_protocol.job import Wire

ITEM_BYTES: dict[Wire, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
_DTYPES: dict[Wire, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def encode(tensor: torch.Tensor, wire: Wire) -> tuple[memoryview, float]:
    """Code a tensor; returns its bytes (row-major, little-endian) and the scale to multiply by after decoding.

    fp16 is sent relative to the largest magnitude: gradients are far below its smallest normal number otherwise.
    """
    scale = 1.0
    tensor = tensor.detach().to("cpu", torch.float32)
    if wire == "fp16":
        largest = float(tensor.abs().max()) if tensor.numel() else 0.0
        scale = largest if largest > 0 and np.isfinite(largest) else 1.0
        tensor = tensor / scale
    coded = tensor.to(_DTYPES[wire]).contiguous()
    flat: Any = coded.view(torch.uint8).reshape(-1).numpy()
    return memoryview(flat), scale


def decode(data: bytes | bytearray | memoryview, scale: float, wire: Wire, shape: tuple[int, ...]) -> torch.Tensor:
    """The inverse of `encode`: an fp32 tensor on the CPU.

    Raises:
        Refused: the length does not fit the shape.
    """
    if len(data) != payload_bytes(wire, shape):
        raise Refused(f"{len(data)} bytes are not a {wire} tensor of shape {shape}")
    buffer = data if isinstance(data, bytearray) else bytearray(data)  # torch wants memory that it may write to
    if not buffer:
        return torch.zeros(shape)
    tensor = torch.frombuffer(buffer, dtype=_DTYPES[wire]).reshape(shape)
    if wire == "fp32":
        return tensor
    return tensor.to(torch.float32) * scale


def payload_bytes(wire: Wire, shape: tuple[int, ...]) -> int:
    """Bytes of a coded tensor of `shape`."""
    return ITEM_BYTES[wire] * int(np.prod(shape, dtype=np.int64))
