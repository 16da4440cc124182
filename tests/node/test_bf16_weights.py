"""Models whose weights are kept in bf16 compute as those whose fp32 weights have the same values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dtfm_node.engine import bf16_weights, weight_gradients
from dtfm_node.engine.bf16_weights import keep_in_bf16
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.engine.weight_gradients import WeightGradients
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.schedule import actions_of
from tests.node.test_training_stage import (
    ARCHITECTURES,
    SEQUENCE,
    STAGES,
    TRAINING,
    VOCAB,
    Neighbours,
    one_thread,
    plan_of,
)

__all__ = ["one_thread"]  # a fixture
CPU = torch.device("cpu")


class Tower(nn.Module):
    """An embedding, a norm, products of both kinds, and a parameter that a module of its own multiplies with."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 6), nn.LayerNorm(6)
        self.linear, self.conv = nn.Linear(6, 8), Conv1D(6, 8)
        self.own = nn.Parameter(torch.ones(2, 6, 6))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens))
        x = self.conv(torch.tanh(self.linear(x)))
        x = x @ self.own[0] + x @ self.own[1]
        found: torch.Tensor = self.head(x)
        return found


def tower(change: Callable[[nn.Module], Any]) -> tuple[Tower, dict[str, nn.Parameter]]:
    """One whose values bf16 has, after a change, and its parameters, with gradients of zero."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        made = Tower()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)).bfloat16() / 4)
    parameters = dict(made.named_parameters())
    change(made)
    for parameter in parameters.values():
        parameter.grad = torch.zeros(parameter.shape)
    return made, parameters


def output_of(model: Tower, precision: torch.dtype) -> torch.Tensor:
    """The output of the second of two micro-batches, whose gradients are summed."""
    for seed in (1, 2):
        tokens = torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(seed))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            y = model(tokens)
        (y.float() * torch.arange(1.0, 12.0)).sum().backward()
    found: torch.Tensor = y.detach()
    return found


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("own", [False, True], ids=["torch's products", "own products"])
@pytest.mark.parametrize("at_a_time", [6, 1 << 24], ids=["in parts", "whole"])
def test_outputs_and_gradients_are_those_of_fp32_weights_with_the_same_values(
    own: bool, precision: torch.dtype, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_gradients, "_WIDENED_VALUES", at_a_time)

    def narrow(model: nn.Module) -> None:
        keep_in_bf16(model, own_products=own)
        if own:
            WeightGradients(model.modules())

    (ours, kept), (plain, whole) = tower(narrow), tower(lambda it: WeightGradients(it.modules()) if own else None)
    torch.testing.assert_close(output_of(ours, precision), output_of(plain, precision))
    close = {"rtol": 1e-5, "atol": 1e-5} if precision is torch.float32 else {"rtol": 2.0**-6, "atol": 0.5}
    for name, parameter in whole.items():
        assert kept[name].dtype == torch.bfloat16
        torch.testing.assert_close(kept[name].grad, parameter.grad, **close)  # of one type, too


def test_an_older_torch_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16_weights, "_CAN_SUM_FP32", False)
    with pytest.raises(UserError, match=r"which torch .* cannot train .*: install torch 2\.10 or later"):
        keep_in_bf16(nn.Linear(2, 2), own_products=False)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("role", STAGES)
@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("gpt2", True)])
def test_a_stage_has_the_gradients_of_one_whose_fp32_weights_have_the_same_values(
    architecture: str, tied: bool, role: str, precision: str, recompute: bool
) -> None:
    model = {"architecture": architecture, "tie_word_embeddings": tied} | ARCHITECTURES[architecture]
    config = resolve_config(Model.model_validate(model), VOCAB, SEQUENCE)
    plan = plan_of(role, recompute=list(range(len(STAGES[role][0]))) if recompute else [])
    states = {}
    for weights in ("bf16", "fp32"):
        training = TRAINING.model_copy(update={"precision": precision, "weights": weights})
        state = states[weights] = TrainingStage(config, plan, STAGES[role][1], training, CPU)
        state.initialise()
        for name, parameter in state.parameters.items():
            parameter.data.copy_(states["bf16"].parameters[name].data)
        state.begin_step(lambda group: None)
        neighbours = Neighbours(state)
        for action in actions_of(plan, STAGES[role][1]):
            neighbours.act(action)
    for name, parameter in states["fp32"].parameters.items():
        ours = states["bf16"].parameters[name]
        assert (ours.dtype, parameter.dtype) == (torch.bfloat16, torch.float32)
        assert ours.grad is not None
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(
            ours.grad, parameter.grad, rtol=0.0, atol=(1e-5 if precision == "fp32" else 0.05) * scale
        )


def test_compiled_layers_run_plainly_where_weights_are_kept_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda module: pytest.fail("it was compiled"))
    config = resolve_config(Model.model_validate({"architecture": "llama"} | ARCHITECTURES["llama"]), VOCAB, SEQUENCE)
    training = TRAINING.model_copy(update={"weights": "bf16"})
    TrainingStage(config, plan_of("only"), "a", training, CPU, compiled=True)
