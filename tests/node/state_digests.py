"""Digests of what must have the same bits on every device: `python -m tests.node.state_digests DEVICE THREADS...`.

It prints a JSON object for each number of threads: the SHA-256 of each case's results. All that goes in is drawn as
integers.
"""

import functools
import hashlib
import itertools
import json
import math
import sys
import typing

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dtfm_node.engine.allreduce import sum_of_parts
from dtfm_node.engine.gradient_norm import clip_factor
from dtfm_node.engine.optimizers import optimizer_of
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.weight_gradients import WideningRoom, kept_rows
from dtfm_protocol.checkpoint.shard import tensor_bytes
from dtfm_protocol.job.job_file import CodecName, OffloadName, OptimizerName, Training, WeightsName
from dtfm_protocol.model.base_forms import Form, KeptParameter, kept
from dtfm_protocol.model.initial_weights import standard_normal
from dtfm_protocol.wire.codec_sizes import BLOCK, SCALE_BYTES, payload_bytes
from dtfm_protocol.wire.codecs import decode

SIZES = (1, 2, 7, 8, 15, 17, 31, 63, 65, 127, 129, 1001, 300_007)
"""Numbers of values: what fills vector units, and the rest after it; threads share the last one, in several turns."""
TRAINING = Training(steps=1000, global_batch=1, micro_batch=1, sequence_length=1, learning_rate=3e-4, warmup_steps=2)


def extremes(seed: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """fp32 values: half of them about 1e-3, the others of any sign and size from zero over the subnormal to 1e34."""
    return _drawn(seed, math.prod(shape)).reshape(shape).copy()


@functools.cache
def _drawn(seed: int, size: int) -> npt.NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    bits = draw.integers(0, 0x7800_0000, size, dtype=np.uint32) | draw.integers(0, 2, size, dtype=np.uint32) << 31
    bits[draw.integers(0, 8, size) == 0] &= 0x807F_FFFF  # no exponent: subnormal
    bits[draw.integers(0, 16, size) == 0] &= 0x8000_0000
    usual = draw.integers(-(1 << 23), 1 << 23, size).astype(np.float32) * np.float32(2.0**-33)
    return np.where(draw.integers(0, 2, size, dtype=np.uint32) == 1, usual, bits.view(np.float32))


def coded(codec: CodecName, values: int) -> npt.NDArray[np.uint8]:
    """A payload of the codec that may come from anyone: every finite value, whatever its scale."""
    draw = np.random.default_rng(values)
    data = draw.integers(0, 256, payload_bytes(codec, (values,)), dtype=np.uint8)
    if codec == "fp32":
        data[:] = extremes(1, (values,)).view(np.uint8)
    elif codec == "bf16":
        data.view(np.uint16)[:] = extremes(1, (values,)).view(np.uint16)[1::2]
    else:
        scales = SCALE_BYTES * (1 if codec == "fp16" else -(-values // BLOCK))
        data[:scales] = (np.abs(extremes(2, (scales // SCALE_BYTES,))) * np.float32(2.0**-7)).view(np.uint8)
        if codec == "fp16":
            data[scales:].view(np.uint16)[:] &= 0xBBFF  # no value above 1: those would be too large for the scale
    return data


def digest(*tensors: torch.Tensor) -> str:
    """The SHA-256 of tensors' bits."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(tensor_bytes(tensor))
    return hashed.hexdigest()


def updates(
    device: torch.device, name: OptimizerName, weights: WeightsName, size: int, offload: OffloadName = "nothing"
) -> str:
    """Of a vector and a matrix, and their moments, after some clipped steps of an optimizer."""
    shapes = {"vector": (size,), "matrix": (size, 1)}
    ours = {
        name: nn.Parameter(torch.from_numpy(extremes(number, shape)).to(device))
        for number, (name, shape) in enumerate(shapes.items())
    }
    training = TRAINING.model_copy(update={"optimizer": name, "weights": weights, "offload": offload})
    for parameter in ours.values() if weights == "bf16" else ():
        parameter.data = parameter.data.bfloat16()
        parameter.grad_dtype = torch.float32
    optimizer = optimizer_of(training, ours)
    for step in range(1, 6):
        for number, parameter in enumerate(ours.values(), start=2 * step):
            parameter.grad = torch.from_numpy(extremes(number, tuple(parameter.shape))).to(device)
        optimizer.update(step, TRAINING.learning_rate_at(step), clip_factor(step / 2, 1.0))
    return digest(*(tensor for _, tensor in state_tensors(ours, optimizer)))


def decoded(device: torch.device, codec: CodecName, size: int) -> str:
    """Of what a payload means."""
    return digest(decode(torch.from_numpy(coded(codec, size)).to(device), codec, (size,)))


def summed(device: torch.device, size: int) -> str:
    """Of the sum of four holders' parts."""
    parts = [torch.from_numpy(extremes(number, (size,))).to(device) for number in range(4)]
    sum_of_parts(parts[2], [part if number != 2 else None for number, part in enumerate(parts)], parts[2])
    return digest(parts[2])


def based(device: torch.device, size: int, inner: int) -> str:
    """Of a matrix that is kept in int8, and of what whoever computes with it reads, whole and as products take it."""
    shape = (17, size) if inner == 1 else (size, 17)
    one = kept(torch.from_numpy(extremes(5, shape)), Form("I8", inner))
    assert one.scale is not None
    value, scale = one.value.to(device), one.scale.to(device)
    parts = [
        part.clone(memory_format=torch.contiguous_format)
        for dtype in (torch.float32, torch.bfloat16)
        for _, _, part in kept_rows(value, scale, dtype, inner == 0, WideningRoom())
    ]
    return digest(value, scale, KeptParameter(value, scale).decoded(), *parts)


def digests(device: torch.device) -> dict[str, str]:
    """Every case's digest."""
    rates = [TRAINING.learning_rate_at(step) for step in range(1, TRAINING.steps + 1)]
    found = {
        "learning rates": digest(torch.tensor(rates, dtype=torch.float64)),
        "initial weights": digest(standard_normal(7, "w", (301, 1003)).to(device)),
    }
    for size in SIZES:
        for name, weights in itertools.product(typing.get_args(OptimizerName), typing.get_args(WeightsName)):
            found[f"{name} of {size} in {weights}"] = updates(device, name, weights, size)
        found[f"offloaded adamw of {size}"] = updates(device, "adamw", "fp32", size, "optimizer")
        for inner in (0, 1):
            found[f"int8 matrix of {size} over {inner}"] = based(device, min(size, 1001), inner)
        found[f"sum of {size}"] = summed(device, size)
        for codec in typing.get_args(CodecName):
            found[f"{codec} of {size}"] = decoded(device, codec, size)
    return found


if __name__ == "__main__":
    for threads in map(int, sys.argv[2:]):
        torch.set_num_threads(threads)
        print(json.dumps(digests(torch.device(sys.argv[1]))))
