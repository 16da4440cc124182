"""Stages, chained, are the whole model: logits, gradients, names and buffers."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.model_config import build_config, resolve_config
from dtfm_protocol.model.single_layer import build_layer
from dtfm_protocol.model.stage import Stage, build_stage, loss_sum
from dtfm_protocol.model.whole_model import build_whole

CPU = torch.device("cpu")
VOCAB, SEQUENCE, LAYERS = 99, 10, 5
CUTS = {1: (0, 5), 2: (0, 2, 5), 3: (0, 1, 4, 5)}
SMALL = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
GROUPED = SMALL | {"num_key_value_heads": 2, "intermediate_size": 48}
FIELDS: dict[str, dict[str, Any]] = {"llama": GROUPED, "qwen3": GROUPED | {"head_dim": 16}, "gpt2": SMALL}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    model = Model.model_validate({"architecture": architecture} | FIELDS[architecture] | fields)
    return resolve_config(model, VOCAB, SEQUENCE)


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randint(0, VOCAB, (3, SEQUENCE + 1), generator=torch.Generator().manual_seed(3))
    return drawn[:, :-1], drawn[:, 1:]


def whole_and_stages(config: dict[str, Any], count: int) -> tuple[Any, list[Stage]]:
    whole = build_whole(config, seed=4)
    generator = torch.Generator().manual_seed(5)
    state = dict(whole.named_parameters())
    stages = [build_stage(config, first, end, CPU) for first, end in itertools.pairwise(CUTS[count])]
    with torch.no_grad():
        for parameter in state.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for stage in stages:
            for name, parameter in stage.named_state().items():
                parameter.copy_(state[name])
    return whole, stages


def summed_gradients(stages: list[Stage]) -> dict[str, torch.Tensor]:
    gradients: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_state().items():
            assert parameter.grad is not None
            gradients[name] = gradients[name] + parameter.grad if name in gradients else parameter.grad
    return gradients


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", FIELDS)
def test_a_chain_of_stages_gives_the_whole_models_logits_and_gradients(
    architecture: str, tied: bool, count: int
) -> None:
    config = config_of(architecture, tie_word_embeddings=tied)
    whole, stages = whole_and_stages(config, count)
    inputs, targets = tokens()
    wanted = whole(input_ids=inputs).logits
    torch.autograd.backward(loss_sum(wanted, targets))

    # as peers do it: each stage's input is a leaf, and its gradient goes back to the stage before
    leaves, outputs = [inputs], [stages[0](inputs)]
    for stage in stages[1:]:
        leaves.append(outputs[-1].detach().requires_grad_())
        outputs.append(stage(leaves[-1]))
    torch.autograd.backward(loss_sum(outputs[-1], targets))
    for output, leaf in zip(outputs[-2::-1], leaves[:0:-1], strict=True):
        torch.autograd.backward(output, leaf.grad)

    torch.testing.assert_close(outputs[-1], wanted, rtol=0, atol=1e-6)
    found = summed_gradients(stages)
    assert found.keys() == dict(whole.named_parameters()).keys()
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(
            found[name], parameter.grad, rtol=1e-6, atol=2e-6 * float(parameter.grad.abs().max())
        )


@pytest.mark.parametrize("architecture", FIELDS)
def test_a_tied_matrix_is_held_at_both_ends_under_the_embeddings_name(architecture: str) -> None:
    config = config_of(architecture, tie_word_embeddings=True)
    whole = build_whole(config, seed=0)
    name = next(key for key, value in whole.named_parameters() if value is whole.get_input_embeddings().weight)
    first, middle, last = (build_stage(config, *cut, CPU) for cut in itertools.pairwise(CUTS[3]))
    assert name in first.named_state()
    assert name in last.named_state()
    assert name not in middle.named_state()
    alone = build_stage(config, 0, LAYERS, CPU)
    assert alone.model.get_input_embeddings().weight is alone.model.get_output_embeddings().weight
    assert len(list(alone.parameters())) == len(alone.named_state())


@pytest.mark.parametrize("architecture", FIELDS)
def test_names_and_order_are_the_whole_models(architecture: str) -> None:
    config = config_of(architecture, tie_word_embeddings=False)
    whole = {name: value.shape for name, value in build_whole(config, seed=0).named_parameters()}
    states = [build_stage(config, first, end, CPU).named_state() for first, end in itertools.pairwise(CUTS[3])]
    assert {name: value.shape for state in states for name, value in state.items()} == whole
    assert sum(len(state) for state in states) == len(whole)
    for state in states:
        assert list(state) == [name for name in whole if name in state]


def test_a_stage_holds_nothing_but_its_own_part() -> None:
    config = config_of("gpt2", tie_word_embeddings=False)
    middle = build_stage(config, 1, 4, CPU)
    assert {name.split(".")[2] for name in middle.named_state()} == {"1", "2", "3"}
    assert {id(p) for p in middle.parameters()} == {id(p) for p in middle.named_state().values()}
    assert not any(tensor.is_meta for tensor in [*middle.parameters(), *middle.buffers()])


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("llama", {}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 256,
                }
            },
        ),
        ("gemma3_text", {"hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4, "head_dim": 8}),
    ],
)
def test_buffers_are_computed_and_not_what_memory_held(architecture: str, fields: dict[str, Any]) -> None:
    model = Model.model_validate({"architecture": architecture} | FIELDS.get(architecture, {}) | fields)
    config = resolve_config(model, VOCAB, SEQUENCE)
    real = AutoModelForCausalLM.from_config(build_config(config))
    wanted = dict(real.named_buffers())
    assert wanted
    for first, end in itertools.pairwise(CUTS[2]):
        found = dict(build_stage(config, first, end, CPU).model.named_buffers())
        assert found.keys() <= wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in found)
        assert first > 0 or found.keys() == wanted.keys()


def test_bf16_autocast_runs_forward_and_backward() -> None:
    config = config_of("llama")
    whole, stages = whole_and_stages(config, 2)
    inputs, targets = tokens()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = whole(input_ids=inputs).logits
        logits = stages[1](stages[0](inputs))
        loss = loss_sum(logits, targets)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert torch.equal(logits, wanted)
    torch.autograd.backward(loss)
    assert all(value.dtype == torch.float32 for value in summed_gradients(stages).values())


def test_the_loss_is_summed_over_all_targets() -> None:
    logits = torch.zeros(2, 3, VOCAB)
    targets = torch.ones(2, 3, dtype=torch.int64)
    torch.testing.assert_close(loss_sum(logits, targets), 6 * torch.log(torch.tensor(float(VOCAB))))


@pytest.mark.parametrize(("first", "end"), [(-1, 2), (2, 2), (3, 2), (0, 6)])
def test_layers_that_do_not_exist_are_an_error(first: int, end: int) -> None:
    with pytest.raises(ValueError, match="no stage"):
        build_stage(config_of("llama"), first, end, CPU)


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("architecture", FIELDS)
def test_one_layer_runs_alone_forward_and_backward(architecture: str, layers: int) -> None:
    layer = build_layer(config_of(architecture, num_hidden_layers=layers), CPU)
    hidden = torch.zeros(2, SEQUENCE, 32, requires_grad=True)
    out = layer(hidden + 1)
    torch.autograd.backward(out.sum())
    assert out.shape == hidden.shape
    assert hidden.grad is not None
    assert all(torch.isfinite(parameter).all() for parameter in layer.parameters())
    assert len({name.split(".")[2] for name in layer.named_state()}) == 1


def test_the_global_random_generator_is_neither_drawn_from_nor_changed() -> None:
    before = torch.get_rng_state()
    build_layer(config_of("qwen3", rms_norm_eps=1e-5), CPU)  # a config that no other test has put in a cache
    assert torch.equal(torch.get_rng_state(), before)
