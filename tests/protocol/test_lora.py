"""Adapters beside matrices: named, shaped and drawn as `peft` does it, in every cut of the model."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import nn

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Lora, Model, Training
from dtfm_protocol.model.frozen_parameters import frozen_sizes, trained_names
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.model.lora import adapter_shapes, add_adapters, merge_adapters
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.model.tied_embeddings import kept_names
from dtfm_protocol.model.whole_model import build_whole

CPU = torch.device("cpu")
SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
TARGETS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "llama": ({"intermediate_size": 96, "num_key_value_heads": 2}, ("q_proj", "self_attn.v_proj", "down_proj")),
    "gpt2": ({}, ("c_attn", "mlp.c_proj")),
}


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    model = {"architecture": architecture} | SMALL | TARGETS[architecture][0] | fields
    return resolve_config(Model.model_validate(model), 99, 64)


def lora_of(architecture: str) -> Lora:
    return Lora(r=3, lora_alpha=6.0, target_modules=TARGETS[architecture][1])


def training(architecture: str) -> Training:
    return Training(
        steps=9, global_batch=4, micro_batch=2, sequence_length=16, learning_rate=1e-3,
        method="lora", lora=lora_of(architecture),
    )  # fmt: skip


def adapted(architecture: str) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """A whole model with adapters that add something."""
    model = build_whole(config_of(architecture), seed=1)
    made = add_adapters(model, config_of(architecture), lora_of(architecture), CPU)
    generator = torch.Generator().manual_seed(2)
    for parameter in made.values():
        nn.init.normal_(parameter, std=0.1, generator=generator)
    return model, made


@pytest.mark.parametrize("architecture", TARGETS)
def test_adapters_have_the_names_and_shapes_that_peft_gives_them_and_add_the_same(architecture: str) -> None:
    lora, (ours, made) = lora_of(architecture), adapted(architecture)
    fan = architecture == "gpt2"
    settings = LoraConfig(r=3, lora_alpha=6, target_modules=list(lora.target_modules), fan_in_fan_out=fan)
    theirs = get_peft_model(build_whole(config_of(architecture), seed=1), settings)
    wanted = get_peft_model_state_dict(theirs)
    shapes = adapter_shapes(config_of(architecture), lora)
    assert {name: tuple(value.shape) for name, value in wanted.items()} == shapes
    assert {name: tuple(value.shape) for name, value in made.items()} == shapes
    named = dict(theirs.named_parameters())
    for name, value in made.items():
        named[name.replace(".weight", ".default.weight")].data.copy_(value)
    tokens = torch.randint(99, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(ours(tokens).logits, theirs(tokens).logits, atol=1e-6)


@pytest.mark.parametrize("architecture", TARGETS)
def test_what_is_merged_computes_the_same_without_adapters(architecture: str) -> None:
    model, made = adapted(architecture)
    plain = build_whole(config_of(architecture), seed=1)
    weights = {name: value.detach() for name, value in plain.named_parameters()}
    tokens = torch.randint(99, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = plain(tokens).logits
        merged = merge_adapters(config_of(architecture), lora_of(architecture), weights | made)
        assert merged.keys() == weights.keys()
        plain.load_state_dict(merged, strict=False)
        assert torch.allclose(plain(tokens).logits, model(tokens).logits, atol=1e-5)
        assert not torch.allclose(before, model(tokens).logits, atol=1e-3)


@pytest.mark.parametrize("architecture", TARGETS)
def test_every_cut_has_each_adapter_once_in_the_group_of_its_layer(architecture: str) -> None:
    config, settings = config_of(architecture), training(architecture)
    shapes, sizes = adapter_shapes(config, settings.lora), frozen_sizes(config, settings)
    for cut in ([0, 4], [0, 1, 4], [0, 2, 3, 4]):
        found: list[str] = []
        for first, end in pairwise(cut):
            stage = build_stage(config, first, end, CPU)
            base = sum(one.numel() for one in stage.named_state().values())
            stage.adapt(config, settings.lora)
            state = stage.named_state()
            trained = trained_names(config, settings, kept_names(config, (first, end)))
            assert trained == {name for name in state if name in shapes}
            assert sizes.added_to(first, end) == sum(state[name].numel() for name in trained)
            assert sizes.of_stage(first, end) == base == model_sizes(config).stage_parameters(first, end)
            _, *layers, _ = stage.backward_order()
            for number, names in zip(reversed(range(first, end)), layers, strict=True):
                assert {name for name in names if name in trained} == {n for n in trained if f".{number}." in n}
            found += trained
        assert sorted(found) == sorted(shapes)


def test_an_adapter_begins_as_a_function_of_seed_and_name_and_adds_nothing() -> None:
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    config = config_of("llama")
    a = initial_value(config, 3, name, (50, 64))
    assert torch.equal(a, initial_value(config, 3, name, (50, 64)))
    for other in ((4, name), (3, name.replace("q_proj", "v_proj"))):
        assert not torch.equal(a, initial_value(config, *other, (50, 64)))
    bound = 1 / math.sqrt(64)
    assert a.dtype == torch.float32
    assert 0.99 * bound < float(a.abs().max()) <= bound
    assert float(a.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert abs(float(a.mean())) < 0.05 * bound
    assert not initial_value(config, 3, name.replace("lora_A", "lora_B"), (64, 50)).any()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "wq",
            "wq names nothing in a llama; its matrices are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v",
        ),
        ("roj", "roj names nothing"),
        ("lm_head", "lm_head names lm_head, a Linear: name matrices of decoder layers"),
        ("self_attn", "self_attn names model.layers.0.self_attn, a LlamaAttention: name matrices"),
        ("input_layernorm", "a LlamaRMSNorm: name matrices"),
    ],
)
def test_a_target_that_is_no_matrix_of_a_layer_is_refused_in_a_line(target: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        adapter_shapes(config_of("llama"), Lora(target_modules=("q_proj", target)))
    assert str(caught.value).startswith("training.lora.target_modules: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
