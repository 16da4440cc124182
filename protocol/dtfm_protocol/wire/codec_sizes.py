"""The names of wire codecs and the bytes of coded tensors. Apart from `codecs`, so that planning alone need not load
torch."""

import math
from typing import Literal, assert_never

CodecName = Literal["fp32", "fp16", "bf16", "int8"]
"""Name of a codec of tensors between peers (`codecs`)."""
BLOCK = 128
"""Number of values that share one scale in int8."""
SCALE_BYTES = 4
"""Bytes of a scale, in fp32."""

BYTES_A_VALUE: dict[CodecName, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0 + SCALE_BYTES / BLOCK}
"""Bytes a value of each codec, in a tensor so large that it does not matter where it is cut."""
FED_BACK: frozenset[CodecName] = frozenset({"int8"})
"""Codecs that leave out so much that the all-reduce adds it to the next step's gradients (error feedback)."""


def coarser(codec: CodecName, than: CodecName) -> CodecName:
    """Return whichever of two codecs takes fewer bytes; the second where they take as many."""
    return codec if BYTES_A_VALUE[codec] < BYTES_A_VALUE[than] else than


def payload_bytes(codec: CodecName, shape: tuple[int, ...]) -> int:
    """Return the bytes of a coded tensor of `shape`: its values and, before them, their scales."""
    values = math.prod(shape)
    match codec:
        case "fp32":
            return 4 * values
        case "bf16":
            return 2 * values
        case "fp16":
            return 2 * values + SCALE_BYTES if values else 0
        case "int8":
            return values + SCALE_BYTES * -(-values // BLOCK)
    assert_never(codec)
