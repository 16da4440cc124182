"""Sizes are real counts; the activation estimate is what autograd saves."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.job.job_file import Lora, Model, Precision, Training
from dtfm_protocol.model.frozen_parameters import frozen_sizes
from dtfm_protocol.model.memory_model import stage_bytes
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.model_sizes import activation_bytes, kept_activations, model_sizes
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.model.stage_demand import layers_demand, smallest_stage_bytes
from dtfm_protocol.model.whole_model import build_whole

CPU = torch.device("cpu")
SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    return resolve_config(Model.model_validate({"architecture": architecture} | SMALL | fields), 99, 64)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_sizes_are_the_real_counts(architecture: str, tied: bool) -> None:
    config = config_of(architecture, tie_word_embeddings=tied)
    sizes = model_sizes(config)
    assert (sizes.hidden_size, sizes.vocab_size, sizes.layers, sizes.tied) == (64, 99, 4, tied)
    assert sizes.total == sum(p.numel() for p in build_whole(config, seed=0).parameters())
    for first, end in [(0, 4), (0, 2), (1, 3), (3, 4)]:
        held = sum(p.numel() for p in build_stage(config, first, end, CPU).parameters())
        assert sizes.stage_parameters(first, end) == held
    assert sizes.head_parameters > 64 * 99


def test_a_large_model_is_counted_without_its_memory() -> None:
    config = resolve_config(Model.model_validate({"architecture": "llama", "hidden_size": 8192}), 128_000, 64)
    assert model_sizes(config).total > 10_000_000_000


def saved_bytes(
    config: dict[str, Any], count: int, batch: int, sequence: int, precision: Precision, *, packed: bool = False
) -> int:
    """What autograd really saves for `count` middle layers, without parameters; `packed`: of two documents each."""
    stage = build_stage(config, 1, 1 + count, CPU)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*stage.parameters(), *stage.buffers()]}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hidden = torch.zeros(batch, sequence, 64, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
    ):
        stage(hidden, torch.arange(sequence).remainder(sequence // 2).expand(batch, -1) if packed else None)
    copies = sum(matrix.numel() for name, matrix in stage.named_state().items() if matrix.ndim == 2) * 2
    kept = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    return kept - (copies if precision == "bf16" else 0)  # autocast's; a stage makes them once a step


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_activation_estimate_is_what_autograd_saves(architecture: str, precision: Precision) -> None:
    config = config_of(architecture)
    one, two = (saved_bytes(config, count, 2, 48, precision) for count in (1, 2))
    assert 0.95 <= activation_bytes(config, 2, 48, precision) / (two - one) <= 1.15


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_estimate_has_the_mask_that_each_layer_keeps_of_packed_documents(
    architecture: str, precision: Precision
) -> None:
    """A value of attention's type for each pair of tokens. Plain text has none: there it is so much too high."""
    batch, sequence = 2, 256
    small = SMALL | ({"intermediate_size": 96} if architecture == "llama" else {})
    config = resolve_config(Model.model_validate({"architecture": architecture} | small), 99, sequence)
    packed, plain = (
        [saved_bytes(config, count, batch, sequence, precision, packed=packed) for count in (1, 2)]
        for packed in (True, False)
    )
    of_layer, without = packed[1] - packed[0], plain[1] - plain[0]
    assert of_layer - without == batch * sequence**2 * (4 if precision == "fp32" else 2)
    assert without < 0.9 * of_layer
    assert 0.95 <= activation_bytes(config, batch, sequence, precision) / of_layer <= 1.1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_of_a_matrix_that_is_not_trained_the_input_is_not_kept(architecture: str, precision: Precision) -> None:
    """A layer keeps what its nonlinear parts need, and of each target its input and the product with A."""
    config, targets = config_of(architecture), {"llama": ("q_proj", "down_proj"), "gpt2": ("c_attn",)}[architecture]
    whole = activation_bytes(config, 2, 48, precision)
    few = activation_bytes(config, 2, 48, precision, lora=Lora(r=2, target_modules=targets))
    more = activation_bytes(config, 2, 48, precision, lora=Lora(r=6, target_modules=targets))
    assert few < whole
    assert more - few == 2 * 48 * 4 * len(targets) * (4 if precision == "fp32" else 2)


def test_the_activation_estimate_grows_with_the_batch_and_costs_no_memory() -> None:
    config = resolve_config(Model.model_validate({"architecture": "llama"}), 32_000, 2048)
    assert activation_bytes(config, 8, 2048) == 8 * activation_bytes(config, 1, 2048) - 7 * _constant(config)


def _constant(config: dict[str, Any]) -> int:
    return 2 * activation_bytes(config, 1, 2048) - activation_bytes(config, 2, 2048)


def test_experts_are_estimated_by_a_closed_form() -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96, "num_key_value_heads": 2}
    config = config_of("mixtral", **experts)
    assert activation_bytes(config, 1, 10) == 10 * 4 * (17 * 64 + 2 * (2 * 64 + 4 * 96))


def test_logits_are_counted_as_often_as_the_loss_holds_them() -> None:
    sizes = model_sizes(config_of("llama"))
    assert sizes.logits_bytes(2, 10, "fp32") == 2 * 10 * 99 * 16
    assert sizes.logits_bytes(2, 10, "bf16") == 2 * 10 * 99 * 20
    assert sizes.logits_gradient_bytes(2, 10, "fp32") == 2 * 10 * 99 * 4
    assert sizes.logits_gradient_bytes(2, 10, "bf16") == 2 * 10 * 99 * 2


def test_the_smallest_stage_has_room_for_the_messages_that_it_receives() -> None:
    config = config_of("llama")
    layer, kept = model_sizes(config).layer_parameters[1], activation_bytes(config, 2, 48)
    training = Training(steps=1, global_batch=2, micro_batch=2, sequence_length=48, learning_rate=1e-3)
    assert smallest_stage_bytes(config, training) == 16 * layer + kept + 2 * 4 * 2 * 48 * 64
    alone = config_of("llama", num_hidden_layers=1)
    parameters, logits = model_sizes(alone).total, model_sizes(alone).logits_bytes(2, 48, "fp32")
    assert smallest_stage_bytes(alone, training) == 16 * parameters + activation_bytes(alone, 2, 48) + logits


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("method", "weights", "base"),
    [
        ("full", "fp32", "fp32"),
        ("full", "bf16", "fp32"),
        ("frozen-layers", "fp32", "fp32"),
        ("lora", "fp32", "fp32"),
        ("lora", "fp32", "bf16"),
        ("lora", "fp32", "int8"),
    ],
)
def test_a_stages_parts_are_in_all_what_the_rule_says(precision: str, method: str, weights: str, base: str) -> None:
    """Products in bf16 take a copy of layers and head, where those are kept in fp32."""
    config = config_of("llama")
    keys: dict[str, Any] = {
        "lora": {"lora": {"target_modules": ["q_proj"], "base": base}},
        "frozen-layers": {"layers": (1, 3)},
    }
    values = {"steps": 1, "global_batch": 2, "micro_batch": 2, "sequence_length": 48, "learning_rate": 1e-3}
    training = Training.model_validate(
        values | {"method": method, "precision": precision, "weights": weights} | keys.get(method, {})
    )
    sizes, frozen = model_sizes(config), frozen_sizes(config, training)
    for first, end in ((0, 2), (2, 4), (0, 4)):
        for recompute in (False, True):
            found = layers_demand(config, training, (first, end), 3, waiting=1, recompute=recompute, reduced="int8")
            parameters = sizes.stage_parameters(first, end) + frozen.added_to(first, end)
            shared = sizes.tied_parameters if end == 4 else 0
            products = parameters - (sizes.embedding_parameters - shared if first == 0 else 0)
            if base != "fp32":
                products = frozen.added_to(first, end)
            copied = products if (precision, weights) == ("bf16", "fp32") else 0
            shape = 2, 48, training.precision
            head = sizes.logits_bytes(*shape) + sizes.logits_gradient_bytes(*shape) if end == 4 else 0
            assert found.copies == 2 * copied
            assert found.frozen == frozen.bytes_of_stage(first, end)
            widest = {"fp32": 4.0, "bf16": 2.1, "int8": 2.1}[base] if weights == "fp32" else 2.0
            assert found.frozen <= widest * frozen.of_stage(first, end)
            assert found.total == pytest.approx(
                stage_bytes(
                    parameters, end - first, 1 if end - first == 4 else 2, 3,
                    parameter_bytes=state_table("adamw", training.weights).parameter_bytes,
                    activation_bytes=kept_activations(config, training),
                    boundary_bytes=4 * 2 * 48 * 64, waiting=1, recompute=recompute, reduced="int8", head_bytes=head,
                    shared=0 if end - first == 4 or frozen.head else sizes.tied_parameters,
                    frozen=frozen.of_stage(first, end), frozen_bytes=found.frozen, copied=copied,
                ),
                abs=3,
            )  # fmt: skip
