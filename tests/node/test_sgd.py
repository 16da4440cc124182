"""The update: SGD's mathematics, with the bits of the same operations in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dtfm_node.engine.elementwise_update import UpdateSettings
from dtfm_node.engine.sgd import SGD
from dtfm_node.engine.state_tensors import load_tensor, state_tensors
from dtfm_protocol.checkpoint.state_slots import TABLES, state_table
from dtfm_protocol.job.job_file import WeightsName
from tests.node.kept_reference import rounded
from tests.node.state_digests import extremes

pytestmark = pytest.mark.unit
RATE, CLIP = 0.01, 0.37
SETTINGS = UpdateSettings(weight_decay=0.3, momentum=0.8)


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"w": (4, 3), "bias": (4,), "embed": (5, 3)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def draw_gradients(ours: dict[str, nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for _, parameter in sorted(ours.items()):
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", [(1,), (31, 33), (401, 331)])
def test_every_bit_is_that_of_the_stated_operations(shape: tuple[int, ...], weights: WeightsName) -> None:
    ours = nn.Parameter(torch.from_numpy(extremes(0, shape)))
    if weights == "bf16":
        ours = nn.Parameter(ours.detach().bfloat16())
        ours.grad_dtype = torch.float32
    optimizer = SGD({"w": ours}, SETTINGS, state_table("sgd", weights))
    weight, momentum = ours.detach().float().numpy().copy(), np.zeros(shape, np.float32)
    for step in range(1, 6):
        gradient = extremes(step, shape)
        ours.grad = torch.from_numpy(gradient)
        optimizer.update(step, RATE, CLIP)
        with np.errstate(over="ignore", under="ignore"):
            momentum = momentum * np.float32(0.8) + gradient * np.float32(CLIP)
            if len(shape) > 1:
                momentum = momentum + weight * np.float32(0.3)
            weight = weight - momentum * np.float32(RATE)
            weight = rounded(weight, SETTINGS.seed, step, "w") if weights == "bf16" else weight
        for found, wanted in ((ours.detach().float(), weight), (optimizer.moments["momentum_buffer/w"], momentum)):
            np.testing.assert_array_equal(found.numpy().view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("decays_all", [False, True])
def test_an_update_is_torchs(decays_all: bool) -> None:
    """In fp64, with decay on matrices only, or on all."""
    ours = parameters()
    theirs = {name: nn.Parameter(parameter.detach().double()) for name, parameter in ours.items()}
    groups: list[dict[str, Any]] = [
        {"params": [parameter], "weight_decay": 0.3 if decays_all or parameter.ndim > 1 else 0.0}
        for parameter in theirs.values()
    ]
    torchs = torch.optim.SGD(groups, lr=RATE, momentum=0.8)
    optimizer = SGD(ours, SETTINGS._replace(decays_all=decays_all))
    for step in range(1, 21):
        draw_gradients(ours, step)
        for name, parameter in theirs.items():
            gradient = ours[name].grad
            assert gradient is not None
            parameter.grad = gradient.double() * CLIP
        optimizer.update(step, RATE, CLIP)
        torchs.step()
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name].detach().double(), parameter.detach(), rtol=1e-5, atol=1e-6)
        wanted = torchs.state[parameter]["momentum_buffer"]
        torch.testing.assert_close(optimizer.moments[f"momentum_buffer/{name}"].double(), wanted, rtol=1e-5, atol=1e-6)


def test_training_goes_on_from_loaded_state_as_if_it_had_not_stopped() -> None:
    whole, other = parameters(), {name: nn.Parameter(torch.zeros_like(value)) for name, value in parameters().items()}
    first, second = SGD(whole, SETTINGS), SGD(other, SETTINGS)
    for step in range(1, 7):
        if step == 4:
            state = {key: value.clone() for key, value in state_tensors(whole, first)}
            assert set(state) == set(TABLES["sgd"].keys(whole, 3))
            for key, value in state.items():
                load_tensor(other, second, key, value)
        draw_gradients(whole, step)
        first.update(step, RATE, CLIP)
        if step >= 4:
            draw_gradients(other, step)
            second.update(step, RATE, CLIP)
    for name, parameter in whole.items():
        assert torch.equal(parameter, other[name])
