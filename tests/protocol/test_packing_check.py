"""Documents that are packed into one sequence are to each architecture what they are alone, or it is refused."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers.models.gpt2.modeling_gpt2 import GPT2Model
from transformers.models.llama.modeling_llama import LlamaModel

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.packing_check import check_packable
from dtfm_protocol.model.slicing_check import TESTED
from dtfm_protocol.model.stage import NO_TARGET, build_stage, loss_sum
from dtfm_protocol.model.tiny_model import WINDOW, tiny_config
from dtfm_protocol.model.whole_model import build_whole

SEQUENCE = 64


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    return resolve_config(Model.model_validate({"architecture": architecture} | fields), 300, SEQUENCE)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", TESTED)
def test_the_tested_architectures_keep_documents_apart(architecture: str) -> None:
    check_packable(config_of(architecture), SEQUENCE)


LENGTHS = (3, 1, 2 * WINDOW + 1, 5)


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("mistral", {"sliding_window": 8}),
        ("gemma3_text", {}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
    ],
)
def test_packed_documents_get_the_gradients_that_they_give_alone(architecture: str, fields: dict[str, Any]) -> None:
    """The sums over documents, each run by itself, on the whole model; and over three stages, packed."""
    config = tiny_config(config_of(architecture, **fields))
    whole = build_whole(config, seed=3)
    drawn = torch.randint(0, 64, (1, sum(LENGTHS) + 1), generator=torch.Generator().manual_seed(3))
    inputs, targets = drawn[:, :-1], drawn[:, 1:].clone()
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    targets[0, list(itertools.accumulate(LENGTHS[:-1]))] = NO_TARGET
    losses = [
        loss_sum(whole(input_ids=one, use_cache=False).logits, wanted)
        for one, wanted in zip(inputs.split(LENGTHS, 1), targets.split(LENGTHS, 1), strict=True)
    ]
    torch.autograd.backward(sum(losses, torch.zeros(())))
    bounds = itertools.pairwise((0, 1, 3, len(config.get("layer_types") or range(4))))
    stages = [build_stage(config, first, end, torch.device("cpu")) for first, end in bounds]
    state, x = dict(whole.named_parameters()), inputs
    for stage in stages:
        with torch.no_grad():
            for name, parameter in stage.named_state().items():
                parameter.copy_(state[name])
        x = stage(x, positions)
    loss = loss_sum(x, targets)
    torch.testing.assert_close(loss, sum(losses, torch.zeros(())), rtol=1e-6, atol=0)
    torch.autograd.backward(loss)
    found: dict[str, torch.Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_state().items():
            if parameter.grad is not None:
                found[name] = found.get(name, torch.zeros(())) + parameter.grad
    for name, parameter in state.items():
        largest = float(parameter.grad.abs().max())
        torch.testing.assert_close(found[name], parameter.grad, rtol=0, atol=1e-5 * largest, msg=name)


def refused(config: dict[str, Any], reason: str, length: int = SEQUENCE) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        check_packable(config, length)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("architecture", ["bloom", "opt"])
def test_an_architecture_with_no_use_for_positions_is_refused(architecture: str) -> None:
    refused(config_of(architecture), f"{architecture}.*packed.*other logits beside others than alone; choose another")


def test_a_model_that_begins_positions_anew_and_looks_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = LlamaModel.forward

    def looking(self: Any, *args: Any, **kwargs: Any) -> Any:
        some = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
        return forward(self, *args, **kwargs | {"attention_mask": torch.ones(some.shape[:2])})

    monkeypatch.setattr(LlamaModel, "forward", looking)
    refused(config_of("llama"), "other logits beside others than alone; choose")


def test_a_model_whose_later_stages_do_not_keep_them_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = GPT2Model.forward

    def forgetting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("inputs_embeds") is not None:
            kwargs.pop("position_ids", None)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(GPT2Model, "forward", forgetting)
    refused(config_of("gpt2"), "alone, in 2 stages; choose")


def test_rotary_tables_that_go_by_the_longest_document_are_refused_where_there_may_be_a_long_one() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 48,
        "long_factor": [4.0] * 48,
        "original_max_position_embeddings": 32,
    }
    fields = {"rope_parameters": rope, "original_max_position_embeddings": 32, "max_position_embeddings": 64}
    config = config_of("phi3", **fields)
    check_packable(config, 32)
    refused(config, "other logits beside others than alone", 33)


def test_the_global_random_generator_is_neither_drawn_from_nor_changed() -> None:
    before = torch.get_rng_state()
    check_packable(config_of("llama"), SEQUENCE)
    assert torch.equal(torch.get_rng_state(), before)


def test_targets_that_do_not_count_add_nothing_to_the_loss_nor_to_its_gradient() -> None:
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.tensor([[1, NO_TARGET, 2], [NO_TARGET] * 3])
    loss = loss_sum(logits, targets)
    torch.testing.assert_close(loss, loss_sum(logits[:1, [0, 2]], targets[:1, [0, 2]]))
    torch.autograd.backward(loss)
    assert logits.grad is not None
    assert torch.count_nonzero(logits.grad[1]) == 0
    assert torch.count_nonzero(logits.grad[0, 1]) == 0
    assert torch.count_nonzero(logits.grad) == 2 * 7
    assert float(loss_sum(logits.detach(), torch.full_like(targets, NO_TARGET))) == 0.0
