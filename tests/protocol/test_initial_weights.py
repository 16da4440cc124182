"""Initial weights are a function of seed and parameter name, whatever the cut."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.initial_weights import initial_value, initialise, standard_normal
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.model.whole_model import build_whole

CPU = torch.device("cpu")
SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    model = Model.model_validate({"architecture": architecture} | SMALL | fields)
    return resolve_config(model, 99, 16)


def initial_state(config: dict[str, Any], first: int, end: int, seed: int) -> dict[str, torch.Tensor]:
    stage = build_stage(config, first, end, CPU)
    initialise(stage.named_state(), config, seed)
    return {name: value.detach() for name, value in stage.named_state().items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("llama", {}), ("qwen3", {"num_key_value_heads": 2, "head_dim": 8}), ("gpt2", {})],
)
def test_a_slice_starts_bit_identical_to_the_whole(architecture: str, fields: dict[str, Any], tied: bool) -> None:
    config = config_of(architecture, tie_word_embeddings=tied, **fields)
    whole = initial_state(config, 0, 3, seed=7)
    for first, end in itertools.pairwise((0, 1, 2, 3)):
        for name, value in initial_state(config, first, end, seed=7).items():
            assert torch.equal(value, whole[name]), name


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
def test_constants_are_the_architectures_own(architecture: str) -> None:
    fields = {"num_key_value_heads": 2, "head_dim": 8} if architecture == "gemma2" else {}
    config = config_of(architecture, **fields)
    for name, value in build_whole(config, seed=1).named_parameters():
        found = initial_value(config, 0, name, value.shape)
        if value.ndim == 1:  # norms and biases
            assert torch.equal(found, value), name
        else:
            assert found.std() > 0, name


def test_seeds_and_names_give_other_values() -> None:
    config = config_of("llama")
    names = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"]
    drawn = [initial_value(config, seed, name, (8, 8)) for seed in (0, 1) for name in names]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))


def test_matrices_are_normal_with_the_configs_deviation() -> None:
    value = initial_value(config_of("llama", initializer_range=0.05), 0, "lm_head.weight", (1000, 200)) / 0.05
    assert abs(float(value.mean())) < 0.01
    assert abs(float(value.std()) - 1) < 0.01
    assert abs(float((value**4).mean()) - 3) < 0.1
    assert abs(float((value < 1).float().mean()) - 0.8413) < 0.005


def test_values_do_not_depend_on_how_many_are_drawn_at_once() -> None:
    assert torch.equal(standard_normal(0, "a", (100, 7), chunk=64), standard_normal(0, "a", (100, 7)))


def test_values_are_the_same_on_every_machine_and_release() -> None:
    found = standard_normal(0, "model.embed_tokens.weight", (64, 64)).numpy().astype("<f4").tobytes()
    assert hashlib.sha256(found).hexdigest() == "37042b50e634c4f93eff4d52930611b31ce4b16e5e83f67f17a5dd69bb9b73a5"


def test_a_parameter_that_the_architecture_lacks_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^[^\n]*model\.nothing\.weight[^\n]*$"):
        initial_value(config_of("llama"), 0, "model.nothing.weight", (2, 2))
