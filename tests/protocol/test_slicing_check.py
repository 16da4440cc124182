"""An architecture whose stages are not the whole model is refused before anyone trains it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.architecture_probe import _anatomy
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.slicing_check import TESTED, check_sliceable
from dtfm_protocol.model.tiny_model import tiny_config


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    return resolve_config(Model.model_validate({"architecture": architecture} | fields), 300, 64)


@pytest.fixture
def fresh_anatomy() -> Any:
    _anatomy.cache_clear()
    yield
    _anatomy.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TESTED)
def test_the_tested_architectures_hold_at_their_defaults(architecture: str) -> None:
    check_sliceable(config_of(architecture))


def test_the_tiny_model_keeps_the_features() -> None:
    tiny = tiny_config(config_of("gemma3_text", num_hidden_layers=7))
    assert tiny["layer_types"] == ["sliding_attention"] * 3 + ["full_attention"]
    assert (tiny["num_attention_heads"], tiny["num_key_value_heads"]) == (4, 2)
    assert tiny["head_dim"] * tiny["num_attention_heads"] != tiny["hidden_size"]
    assert tiny_config(config_of("llama", tie_word_embeddings=True))["tie_word_embeddings"] is True


def refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        check_sliceable(config)
    assert "\n" not in str(caught.value)


def test_a_model_that_does_something_once_after_its_layers_is_refused(
    monkeypatch: pytest.MonkeyPatch, fresh_anatomy: None
) -> None:
    forward = LlamaModel.forward

    def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(self, *args, **kwargs)
        out.last_hidden_state = out.last_hidden_state * 1.1
        return out

    monkeypatch.setattr(LlamaModel, "forward", scaled)
    refused(config_of("llama"), "other logits in 2 stages")


def test_a_model_that_stops_a_gradient_between_stages_is_refused(
    monkeypatch: pytest.MonkeyPatch, fresh_anatomy: None
) -> None:
    forward = LlamaModel.forward

    def detached(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(self, *args, **kwargs)
        if kwargs.get("input_ids") is not None and len(self.layers) < 4:
            out.last_hidden_state = out.last_hidden_state.detach()
        return out

    monkeypatch.setattr(LlamaModel, "forward", detached)
    refused(config_of("llama"), "another gradient of .* in 2 stages")


def test_a_model_with_a_buffer_that_is_state_is_refused(monkeypatch: pytest.MonkeyPatch, fresh_anatomy: None) -> None:
    build = LlamaDecoderLayer.__init__

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self.register_buffer("seen", torch.zeros(1))

    monkeypatch.setattr(LlamaDecoderLayer, "__init__", counting)
    refused(config_of("llama"), r"layers\.0\.seen")


def test_a_model_that_draws_random_numbers_is_refused(monkeypatch: pytest.MonkeyPatch, fresh_anatomy: None) -> None:
    forward = Qwen3RMSNorm.forward

    def noisy(self: Any, x: torch.Tensor) -> torch.Tensor:
        return forward(self, x) + 0 * torch.rand(())

    monkeypatch.setattr(Qwen3RMSNorm, "forward", noisy)
    before = torch.get_rng_state()
    refused(config_of("qwen3"), "draws random numbers")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_looks_both_ways_is_refused() -> None:
    refused(config_of("gemma3_text", use_bidirectional_attention=True), "looks at later tokens")


def test_a_model_that_starts_from_a_table_of_its_own_is_refused() -> None:
    refused(config_of("falcon_mamba", num_hidden_layers=2), "from a table of its own")
