"""How layers run: recomputing keeps less and computes the same; a compiler that does not work is named."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dtfm_node.engine.layers import check_compiler, compile_layers, recompute
from dtfm_node.engine.weight_gradients import WeightGradients, accumulate
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.initial_weights import initialise
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.stage import Stage, build_stage, loss_sum

CPU = torch.device("cpu")
VOCAB, SEQUENCE, LAYERS = 61, 16, 4
FIELDS: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
ARCHITECTURES = {
    "llama": FIELDS | {"num_key_value_heads": 2, "intermediate_size": 48},
    "gpt2": FIELDS,
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stage_of(architecture: str, first: int = 0, end: int = LAYERS) -> Stage:
    model = Model.model_validate({"architecture": architecture} | ARCHITECTURES[architecture])
    config = resolve_config(model, VOCAB, SEQUENCE)
    stage = build_stage(config, first, end, CPU)
    initialise(stage.named_state(), config, seed=1)
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return stage


def loss_of(stage: Stage) -> torch.Tensor:
    tokens = torch.randint(0, VOCAB, (2, SEQUENCE + 1), generator=torch.Generator().manual_seed(3))
    return loss_sum(stage(tokens[:, :-1]), tokens[:, 1:])


def gradients(stage: Stage) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.clone() for name, parameter in stage.named_state().items() if parameter.grad is not None
    }


def kept_bytes(stage: Stage, forward: Callable[[Stage], torch.Tensor]) -> int:
    """What a forward keeps for its backward; parameters, which are there anyway, left out."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward(stage)
    assert output.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recomputing_gives_the_same_gradients(architecture: str) -> None:
    plain, ours = stage_of(architecture), stage_of(architecture)
    recompute(ours)
    losses = [loss_of(stage) for stage in (plain, ours)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for name, wanted in gradients(plain).items():
        torch.testing.assert_close(gradients(ours)[name], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_recomputing_goes_together_with_matrices_that_are_put_off(architecture: str, precision: torch.dtype) -> None:
    """The product's input is that of the second forward, in the precision of the first."""
    plain, ours = stage_of(architecture), stage_of(architecture)
    recompute(ours)
    matrices = [WeightGradients(stage.modules()) for stage in (plain, ours)]
    for stage, own in zip((plain, ours), matrices, strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            loss = loss_of(stage)
        own.defer()
        loss.backward()
        for one in own.take_deferred():
            accumulate(one)
    for name, wanted in gradients(plain).items():
        torch.testing.assert_close(gradients(ours)[name], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recomputing_keeps_far_less(architecture: str) -> None:
    plain, ours = stage_of(architecture), stage_of(architecture)
    recompute(ours)
    assert 0 < kept_bytes(ours, loss_of) < kept_bytes(plain, loss_of) / 3


def test_of_one_more_layer_recomputing_keeps_its_input_alone() -> None:
    """Hidden states [2, SEQUENCE, 32] of fp32."""
    tokens = torch.zeros(2, SEQUENCE, dtype=torch.int64)
    kept = []
    for end in (2, 3):
        stage = stage_of("llama", 0, end)
        recompute(stage)
        kept.append(kept_bytes(stage, lambda stage: stage(tokens)))
    assert kept[1] - kept[0] == 2 * SEQUENCE * 32 * 4


def test_a_layer_is_run_twice_for_a_backward_and_once_for_an_evaluation() -> None:
    stage = stage_of("llama")
    calls = 0
    mlp: Any = stage.layers()[1].mlp
    plain = mlp.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return plain(*args, **kwargs)

    mlp.forward = counted
    recompute(stage)
    loss = loss_of(stage)
    assert calls == 1
    loss.backward()
    assert calls == 2
    with torch.no_grad():
        loss_of(stage)
    assert calls == 3


def test_every_layer_of_the_stage_and_nothing_else_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, compiled = stage_of("llama", 1, 3), []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))
    compile_layers(stage)
    assert compiled == stage.layers()
    assert len(compiled) == 2


@pytest.mark.parametrize(("error", "said"), [("\nno C++ compiler\nat all", "no C++ compiler"), ("", "RuntimeError")])
def test_a_compiler_that_does_not_work_is_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch, error: str, said: str
) -> None:
    def fails(_: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(UserError) as caught:
        check_compiler(CPU)
    assert str(caught.value) == (
        f"--compile: torch cannot compile here ({said}): install a C++ compiler, or leave it out"
    )


def test_a_compiler_that_works_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[torch.nn.Module] = []

    def works(module: torch.nn.Module) -> torch.nn.Module:
        tried.append(module)
        return module

    monkeypatch.setattr(torch, "compile", works)
    check_compiler(CPU)
    assert len(tried) == 1
