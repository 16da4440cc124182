"""What swarm and `solo` share around the update: the gradient's norm, its clip, and the state by name."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dtfm_node.engine.adamw import AdamW
from dtfm_node.engine.elementwise_update import UpdateSettings
from dtfm_node.engine.gradient_norm import clip_factor, sum_of_squares
from dtfm_node.engine.state_tensors import load_tensor, state_tensors
from dtfm_protocol.checkpoint.shard import torch_dtype
from dtfm_protocol.checkpoint.state_slots import ADAMW, ADAMW_8BIT, WEIGHT, StateTable, state_table

Parameters = dict[str, nn.Parameter]
SETTINGS = UpdateSettings(0.1)


def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(1)
    shapes = {"w": (4, 3), "bias": (4,), "norm": (3,), "embed": (5, 3)}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def train(ours: Parameters, optimizer: AdamW, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for _, parameter in sorted(ours.items()):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.update(step, 0.01)


@pytest.mark.parametrize(
    "table", [ADAMW, ADAMW_8BIT, state_table("adamw-8bit", "bf16")], ids=["fp32", "8 bits", "8 bits of bf16 weights"]
)
def test_training_goes_on_from_loaded_state_as_if_it_had_not_stopped(table: StateTable) -> None:
    whole, other = parameters(), {name: nn.Parameter(torch.zeros_like(value)) for name, value in parameters().items()}
    for parameter in (*whole.values(), *other.values()):
        parameter.data = parameter.data.to(torch_dtype(table.of_key(f"{WEIGHT}/").dtype))
        parameter.grad_dtype = torch.float32
    first, second = AdamW(whole, SETTINGS, table), AdamW(other, SETTINGS, table)
    train(whole, first, range(1, 4))
    state = {key: value.clone() for key, value in state_tensors(whole, first)}
    assert set(state) == set(table.keys(whole, 3))
    for key, value in state.items():
        assert tuple(value.shape) == table.of_key(key).shape(whole[key.partition("/")[2]].shape)
    for key, value in reversed(state.items()):
        load_tensor(other, second, key, value)
    train(whole, first, range(4, 7))
    train(other, second, range(4, 7))
    for name, parameter in whole.items():
        assert torch.equal(parameter, other[name])


def test_what_is_loaded_is_a_copy() -> None:
    ours = parameters()
    optimizer = AdamW(ours, SETTINGS)
    for kind in ("weight", "exp_avg"):
        value = torch.ones(4, 3)
        load_tensor(ours, optimizer, f"{kind}/w", value)
        value.fill_(7.0)
    assert float(ours["w"].detach().max()) == 1.0
    assert float(optimizer.moments["exp_avg/w"].max()) == 1.0


def test_state_comes_by_name_and_before_the_first_step_without_moments() -> None:
    ours = parameters()
    optimizer = AdamW(ours, SETTINGS)
    weights = ("weight/bias", "weight/embed", "weight/norm", "weight/w")
    assert tuple(key for key, _ in state_tensors(ours, optimizer)) == ADAMW.keys(ours, 0) == weights
    train(ours, optimizer, range(1, 2))
    keys = tuple(key for key, _ in state_tensors(ours, optimizer))
    assert keys == ADAMW.keys(reversed(ours), 1)
    assert keys[:3] == ("weight/bias", "exp_avg/bias", "exp_avg_sq/bias")
    assert len(keys) == 12


@pytest.mark.parametrize("elements", [0, 1, 2, 3, 1000, 65_535, 65_536, 65_537, 200_000])
def test_a_sum_of_squares_is_exact_to_fp64_however_many_values(elements: int) -> None:
    values = torch.randn(elements, generator=torch.Generator().manual_seed(2)) * 1e-3
    values[:1] = 1e3  # in fp32 the small ones would be lost beside it
    assert sum_of_squares(values) == pytest.approx(math.fsum(float(value) ** 2 for value in values), rel=1e-14)


@pytest.mark.parametrize("elements", [1000, 3 * 65_536 + 77])
def test_a_sum_of_squares_is_made_in_the_order_that_is_stated(elements: int) -> None:
    """In numpy, which has no say in what torch does: lane by lane, then half to half."""
    values = torch.randn(elements, generator=torch.Generator().manual_seed(3)) * 1e-3
    lanes = np.zeros(65_536)
    for start in range(0, len(values), 65_536):
        run = values[start : start + 65_536].numpy().astype(np.float64)
        lanes[: len(run)] = lanes[: len(run)] + run * run
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    assert sum_of_squares(values) == lanes[0]
    threads = torch.get_num_threads()
    try:
        for other in (1, 3):
            torch.set_num_threads(other)
            assert sum_of_squares(values) == lanes[0]
    finally:
        torch.set_num_threads(threads)


def test_a_sum_of_squares_is_that_of_a_matrix_too_and_not_finite_where_a_value_is_not() -> None:
    assert sum_of_squares(torch.full((3, 2), 2.0)) == 24.0
    assert sum_of_squares(torch.tensor([1.0, math.nan])) != sum_of_squares(torch.tensor([1.0, math.nan]))
    assert sum_of_squares(torch.tensor([1.0, -math.inf])) == math.inf
    assert sum_of_squares(torch.tensor([1e30, 1e30])) == pytest.approx(2e60)


@given(norm=st.floats(0, 1e30), clip=st.floats(1e-6, 1e6))
def test_clipping_brings_the_norm_to_the_limit_and_leaves_what_is_below_it(norm: float, clip: float) -> None:
    factor = clip_factor(norm, clip)
    assert 0 < factor <= 1
    assert norm * factor <= clip * (1 + 1e-12)
    assert clip_factor(norm, 0.0) == 1.0
    if norm + 1e-6 <= clip:
        assert factor == 1.0
