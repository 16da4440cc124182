"""The update: AdamW's mathematics, with the bits of the same operations in numpy."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from dtfm_node.engine.adamw import AdamW
from dtfm_node.engine.elementwise_update import UpdateSettings
from dtfm_protocol.checkpoint.state_slots import ADAMW_8BIT, state_table
from tests.node.kept_reference import dequantised, quantised, rounded
from tests.node.state_digests import extremes

Array = npt.NDArray[np.float32]
Parameters = dict[str, nn.Parameter]
RATE, DECAY = 0.01, 0.3
SETTINGS = UpdateSettings(DECAY)


def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(1)
    shapes = {"w": (4, 3), "bias": (4,), "norm": (3,), "embed": (5, 3)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def draw_gradients(ours: Parameters, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for _, parameter in sorted(ours.items()):
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def updated(
    step: int, clip: float, decay: float, weight: Array, gradient: Array, mean: Array, square: Array
) -> tuple[Array, Array, Array]:
    """What a step makes of weights and moments: each operation is numpy's on fp32, in the module's stated order."""
    first, second = SETTINGS.betas
    root = math.sqrt(1.0 - second**step)
    mean = mean * np.float32(first) + gradient * np.float32(clip * (1.0 - first))
    scaled = gradient * np.float32(clip * math.sqrt(1.0 - second))
    square = square * np.float32(second) + scaled * scaled
    quotient = mean / (np.sqrt(square) + np.float32(SETTINGS.eps * root))
    change = quotient * np.float32(RATE * root / (1.0 - first**step))
    return weight * np.float32(1.0 - RATE * decay) - change, mean, square


@pytest.mark.parametrize("clip", [1.0, 0.37])
@pytest.mark.parametrize("shape", [(1,), (1001,), (31, 33), (401, 331)])
def test_every_bit_is_that_of_the_stated_operations(shape: tuple[int, ...], clip: float) -> None:
    """With the smallest and the largest numbers among the rest, and, in the last case, with more values than are
    updated at a time."""
    ours = nn.Parameter(torch.from_numpy(extremes(0, shape)))
    optimizer = AdamW({"w": ours}, SETTINGS)
    weight, mean, square = ours.detach().numpy().copy(), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for step in range(1, 8):
        gradient = extremes(step, shape)
        ours.grad = torch.from_numpy(gradient)
        optimizer.update(step, RATE, clip)
        with np.errstate(over="ignore", under="ignore"):
            decay = DECAY if len(shape) > 1 else 0.0
            weight, mean, square = updated(step, clip, decay, weight, gradient, mean, square)
        for found, wanted in (
            (ours.detach(), weight),
            (optimizer.moments["exp_avg/w"], mean),
            (optimizer.moments["exp_avg_sq/w"], square),
        ):
            np.testing.assert_array_equal(found.numpy().view(np.uint32), wanted.view(np.uint32))
    assert np.isfinite(weight).all()


@pytest.mark.parametrize("shape", [(1,), (1001,), (31, 33), (401, 331)])
def test_every_bit_of_moments_in_8_bits_is_that_of_the_stated_operations(shape: tuple[int, ...]) -> None:
    """The same update, of moments that are widened before it and quantised after it, block by block."""
    ours = nn.Parameter(torch.from_numpy(extremes(0, shape)))
    optimizer = AdamW({"w": ours}, SETTINGS, ADAMW_8BIT)
    weight = ours.detach().numpy().copy()
    mean, square = np.full(shape, -0.0, np.float32), np.zeros(shape, np.float32)  # code 0, which is below 0, of scale 0
    for step in range(1, 8):
        gradient = extremes(step, shape)
        ours.grad = torch.from_numpy(gradient)
        optimizer.update(step, RATE, 0.37)
        with np.errstate(over="ignore", under="ignore"):
            decay = DECAY if len(shape) > 1 else 0.0
            weight, mean, square = updated(step, 0.37, decay, weight, gradient, mean, square)
            means, squares = quantised(mean, signed=True), quantised(square, signed=False)
            mean, square = dequantised(*means, signed=True), dequantised(*squares, signed=False)
        np.testing.assert_array_equal(ours.detach().numpy().view(np.uint32), weight.view(np.uint32))
        for moment, (codes, scales) in (("exp_avg", means), ("exp_avg_sq", squares)):
            np.testing.assert_array_equal(optimizer.moments[f"{moment}_code/w"].numpy(), codes)
            found = optimizer.moments[f"{moment}_scale/w"].numpy()
            np.testing.assert_array_equal(found.view(np.uint32), scales.view(np.uint32))
    assert np.isfinite(weight).all()


@pytest.mark.parametrize("shape", [(1,), (1001,), (401, 331)])
def test_every_bit_of_weights_in_bf16_is_that_of_the_stated_operations(shape: tuple[int, ...]) -> None:
    """The same update of the same numbers in fp32, whose result is rounded up or down."""
    ours = nn.Parameter(torch.from_numpy(extremes(0, shape)).bfloat16())
    ours.grad_dtype = torch.float32
    optimizer = AdamW({"w": ours}, SETTINGS._replace(seed=7), state_table("adamw", "bf16"))
    weight, mean, square = ours.detach().float().numpy(), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for step in range(1, 8):
        gradient = extremes(step, shape)
        ours.grad = torch.from_numpy(gradient)
        optimizer.update(step, RATE, 0.37)
        with np.errstate(over="ignore", under="ignore"):
            decay = DECAY if len(shape) > 1 else 0.0
            weight, mean, square = updated(step, 0.37, decay, weight, gradient, mean, square)
            weight = rounded(weight, 7, step, "w")
        for found, wanted in (
            (ours.detach().float(), weight),
            (optimizer.moments["exp_avg/w"], mean),
            (optimizer.moments["exp_avg_sq/w"], square),
        ):
            np.testing.assert_array_equal(found.numpy().view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("clip", [1.0, 0.25])
def test_an_update_is_adamws_with_decay_on_matrices_only(clip: float) -> None:
    """As torch computes it in fp64."""
    ours = parameters()
    theirs = {name: nn.Parameter(parameter.detach().double()) for name, parameter in ours.items()}
    matrices = [parameter for parameter in theirs.values() if parameter.ndim > 1]
    vectors = [parameter for parameter in theirs.values() if parameter.ndim == 1]
    torchs = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=RATE, betas=(0.9, 0.95), eps=1e-8, foreach=False,
    )  # fmt: skip
    optimizer = AdamW(ours, SETTINGS)
    for step in range(1, 21):
        draw_gradients(ours, step)
        for name, parameter in theirs.items():
            gradient = ours[name].grad
            assert gradient is not None
            parameter.grad = gradient.double() * clip
        optimizer.update(step, RATE, clip)
        torchs.step()
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name].detach().double(), parameter.detach(), rtol=1e-5, atol=1e-6)
        for moment in (slot.name for slot in AdamW.table.moments):
            wanted = torchs.state[parameter][moment]
            torch.testing.assert_close(optimizer.moments[f"{moment}/{name}"].double(), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("names", [["w"], ["bias"], ["w", "bias"]])
def test_a_stage_may_have_matrices_alone_or_vectors_alone(names: list[str]) -> None:
    whole = parameters()
    ours = {name: parameter for name, parameter in parameters().items() if name in names}
    for some in (whole, ours):
        draw_gradients(whole, 1)
        for name, parameter in some.items():
            parameter.grad = whole[name].grad
        AdamW(some, SETTINGS).update(1, RATE)
    for name, parameter in ours.items():
        assert torch.equal(parameter, whole[name])


def test_gradients_stay_as_they_are_and_what_has_none_is_left_alone() -> None:
    ours, before = parameters(), parameters()
    draw_gradients(ours, 1)
    gradients = {name: parameter.grad.clone() for name, parameter in ours.items() if parameter.grad is not None}
    ours["w"].grad = None
    optimizer = AdamW(ours, SETTINGS)
    optimizer.update(1, RATE, 0.5)
    assert torch.equal(ours["w"], before["w"])
    assert set(optimizer.moments) == {
        f"{slot.name}/{name}" for slot in AdamW.table.moments for name in before if name != "w"
    }
    for name, parameter in ours.items():
        if name != "w":
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradients[name])
            assert not torch.equal(parameter, before[name])
