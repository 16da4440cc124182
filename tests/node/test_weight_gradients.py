"""Gradients of matrices that are computed apart are those of autograd, at once or later."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dtfm_node.engine.weight_gradients import WeightGradients, accumulate

IN, OUT = 6, 4
SHAPES = [(5, IN), (2, 3, IN), (IN,)]
PRECISIONS = [torch.float32, torch.bfloat16]
KINDS = ["linear", "linear without bias", "conv1d"]


def built(kind: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "conv1d":
            module: nn.Module = Conv1D(OUT, IN)
            nn.init.normal_(module.bias)  # type: ignore[arg-type]
            return module
        return nn.Linear(IN, OUT, bias=kind == "linear")


def with_gradients(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return module


def inputs(shape: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters() if parameter.grad is not None}


def run(module: nn.Module, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A loss that weighs all outputs differently."""
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        y: torch.Tensor = module(x)
    assert y.dtype == dtype
    return (y.float() * torch.arange(1.0, y.numel() + 1).view_as(y)).sum()


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    close: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2.0**-6, "atol": 0.5}
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, **close)


@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
@pytest.mark.parametrize("dtype", PRECISIONS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_autograds(kind: str, shape: tuple[int, ...], dtype: torch.dtype, deferred: bool) -> None:
    """Over two micro-batches, which add up."""
    plain, ours = built(kind), with_gradients(built(kind))
    matrices = WeightGradients([ours])
    for seed in (1, 2):
        theirs, mine = inputs(shape, seed).requires_grad_(), inputs(shape, seed).requires_grad_()
        loss, found = run(plain, theirs, dtype), run(ours, mine, dtype)
        torch.testing.assert_close(found, loss)
        loss.backward()
        before = gradients(ours)
        if deferred:
            matrices.defer()
        found.backward()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6 if dtype is torch.float32 else 2.0**-6, atol=1e-6)
        if deferred:
            assert_same(gradients(ours), before, torch.float32)
            (pending,) = matrices.take_deferred()
            accumulate(pending)
        assert_same(gradients(ours), gradients(plain), dtype)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_needs_no_gradient_leaves_the_matrix_its_own(kind: str, dtype: torch.dtype) -> None:
    """As the first product behind an embedding that is given hidden states does."""
    plain, ours = built(kind), with_gradients(built(kind))
    WeightGradients([ours])
    x = inputs((3, IN))
    run(plain, x, dtype).backward()
    run(ours, x, dtype).backward()
    assert x.grad is None
    assert_same(gradients(ours), gradients(plain), dtype)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "deferred"])
def test_a_matrix_that_is_used_twice_has_the_sum_of_both(deferred: bool, dtype: torch.dtype) -> None:
    """Two modules that share it, as a head shares the embedding's, and one of them called twice."""

    def net() -> nn.Sequential:
        first, second = nn.Linear(IN, IN, bias=False), nn.Linear(IN, IN)
        with torch.no_grad():
            for number, parameter in enumerate([first.weight, second.bias]):
                parameter.copy_(inputs(tuple(parameter.shape), 7 + number) / 3)
        second.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), first)

    plain, ours = net(), with_gradients(net())
    matrices = WeightGradients(ours.modules())
    run(plain, inputs((5, IN)), dtype).backward()
    if deferred:
        matrices.defer()
    run(ours, inputs((5, IN)), dtype).backward()
    if deferred:
        pending = matrices.take_deferred()
        assert [bias is not None for _, bias, *_ in pending] == [False, True, False]  # from the last product back
        for one in pending:
            accumulate(one)
    assert_same(gradients(ours), gradients(plain), dtype)


def test_after_the_deferred_ones_are_taken_gradients_come_at_once_again() -> None:
    ours = with_gradients(built("linear"))
    matrices = WeightGradients([ours])
    matrices.defer()
    assert matrices.take_deferred() == []
    run(ours, inputs((2, IN)), torch.float32).backward()
    assert all(bool(gradient.any()) for gradient in gradients(ours).values())
    assert matrices.take_deferred() == []


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_and_gradients_may_lie_in_memory_in_any_order(kind: str) -> None:
    plain, ours = built(kind), with_gradients(built(kind))
    WeightGradients([ours])
    for module in (plain, ours):
        x = inputs((IN, 3, 2)).permute(2, 1, 0)
        y = module(x if module is ours else x.contiguous())  # which transformers' Conv1D wants
        y.backward(inputs((OUT, 3, 2), 3).permute(2, 1, 0))
    assert_same(gradients(ours), gradients(plain), torch.float32)


class Twice(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_subclasses_and_other_modules_are_left_alone() -> None:
    plain, ours = Twice(IN, OUT), Twice(IN, OUT)
    ours.load_state_dict(plain.state_dict())
    others = [ours, nn.Embedding(3, IN), nn.LayerNorm(IN), nn.Bilinear(IN, IN, OUT)]
    WeightGradients(others)
    assert all("forward" not in vars(module) for module in others)
    for module in (plain, ours):
        run(module, inputs((5, IN)), torch.float32).backward()
    assert_same(gradients(ours), gradients(plain), torch.float32)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients_the_product_is_the_same_and_keeps_nothing(kind: str, dtype: torch.dtype) -> None:
    plain, ours = built(kind), with_gradients(built(kind))
    WeightGradients([ours])
    x = inputs((2, 3, IN))
    with torch.no_grad():
        found = run(ours, x, dtype)
        torch.testing.assert_close(found, run(plain, x, dtype))
    assert found.grad_fn is None


def test_a_product_keeps_its_input_alone() -> None:
    """Neither the matrix nor the output is saved again for every micro-batch."""
    ours = with_gradients(built("linear"))
    WeightGradients([ours])
    saved: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    x = inputs((5, IN)).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        ours(x)
    assert len(saved) == 1
    assert saved[0].data_ptr() == x.data_ptr()


def test_a_matrix_is_cast_once_until_the_parameters_have_changed() -> None:
    ours = with_gradients(built("linear"))
    assert isinstance(ours, nn.Linear)
    matrices = WeightGradients([ours])
    low = matrices.lowered(ours.weight, torch.bfloat16)
    assert matrices.lowered(ours.weight, torch.bfloat16) is low
    assert matrices.lowered(ours.weight, torch.float32) is ours.weight
    x = inputs((5, IN))
    with torch.no_grad():
        ours.weight.mul_(3)
    matrices.forget()
    plain = copy.deepcopy(ours)
    del plain.forward
    torch.testing.assert_close(run(ours, x, torch.bfloat16), run(plain, x, torch.bfloat16))


def test_gradients_stay_in_the_memory_that_they_were_given() -> None:
    """They are views into the buffer that is reduced."""
    for kind, dtype, deferred in itertools.product(KINDS, PRECISIONS, [False, True]):
        ours = built(kind)
        buffer = torch.zeros(sum(parameter.numel() for parameter in ours.parameters()))
        parts = buffer.split([parameter.numel() for parameter in ours.parameters()])
        for parameter, part in zip(ours.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        matrices = WeightGradients([ours])
        if deferred:
            matrices.defer()
        run(ours, inputs((5, IN)), dtype).backward()
        for one in matrices.take_deferred():
            accumulate(one)
        for part in parts:
            assert bool(part.any())
