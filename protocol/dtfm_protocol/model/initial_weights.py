"""Initial weights: a function of seed and parameter name, so that any cut of the model starts as the whole does."""

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.lora import ADAPTED

CHUNK = 1 << 22
"""Values that are drawn at a time, so that the intermediate integers stay few. They do not depend on it."""
LEVELS = 1 << 16
"""Equally likely values among which each initial value is chosen: quantiles of the normal distribution, or steps of
the uniform one."""


def initial_value(config: dict[str, Any], seed: int, name: str, shape: Sequence[int]) -> torch.Tensor:
    """Compute the initial fp32 value, on the CPU, of the parameter that the whole model knows as `name`.

    Parameters that the architecture starts as a constant (weights of norms, biases) are that constant; all others are
    normal with the config's `initializer_range` as standard deviation. (gpt2's smaller start of the projections that
    end a residual branch is not followed.) Of adapters (`lora`), A is uniform between -1 and 1 over the root of its
    width, as `peft` has it, and B is zero.

    Raises:
        UserError: the architecture has no such parameter.
    """
    if name.startswith(ADAPTED):
        return _uniform(seed, name, shape) if ".lora_A." in name else torch.zeros(tuple(shape))
    parts = anatomy(config)
    constant = parts.constant(name)
    if constant is not None:
        return torch.full(tuple(shape), constant)
    return standard_normal(seed, name, shape).mul_(parts.spread)


def initialise(parameters: Mapping[str, nn.Parameter], config: dict[str, Any], seed: int) -> None:
    """Fill parameters, by their names in the whole model, with the initial values of the job's seed."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(initial_value(config, seed, name, parameter.shape))


def standard_normal(seed: int, name: str, shape: Sequence[int], chunk: int = CHUNK) -> torch.Tensor:
    """Draw fp32 values of mean 0 and standard deviation 1 that are a function of seed and name on any machine.

    `Tensor.normal_` rounds differently on processors with other vector units, and replicas must start bit-identical. So
    the generator draws integers, which are the same everywhere, and they choose among the quantiles of the normal
    distribution.

    Args:
        chunk: values that are drawn at a time; it decides on nothing but memory.
    """
    generator = _generator(seed, name)
    values, table = torch.empty(math.prod(shape)), _quantiles()
    for first in range(0, len(values), chunk):
        part = values[first : first + chunk]
        drawn = torch.randint(0, len(table), (len(part),), dtype=torch.int32, generator=generator)
        part.copy_(table.index_select(0, drawn))
    return values.view(tuple(shape))


def _uniform(seed: int, name: str, shape: Sequence[int]) -> torch.Tensor:
    """Draw fp32 values `[rows, columns]` between -1 and 1 over the root of `columns`, one of `LEVELS` each: integers,
    which are the same on any machine, and one product."""
    drawn = torch.randint(0, LEVELS, tuple(shape), dtype=torch.int32, generator=_generator(seed, name))
    bound = torch.tensor(1 / math.sqrt(shape[-1]), dtype=torch.float32)
    return drawn.float().mul_(2).add_(1 - LEVELS).div_(LEVELS).mul_(bound)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@functools.cache
def _quantiles() -> torch.Tensor:
    """Return the middles of 2^16 equally likely parts of the normal distribution, to 4.3 standard deviations; fp32.

    Their last bits in fp64 are the mathematical library's; rounding to multiples of 2^-16 takes those away.
    """
    middles = torch.arange(LEVELS, dtype=torch.float64).add_(0.5).div_(LEVELS)
    quantiles: torch.Tensor = torch.special.ndtri(middles)
    return quantiles.mul_(LEVELS).round_().div_(LEVELS).float()
