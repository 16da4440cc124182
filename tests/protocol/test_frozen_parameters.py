"""Which parameters a job leaves as they begin follows from the job and their names, the same for every cut."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model, Training
from dtfm_protocol.model.frozen_parameters import check_frozen, frozen_names, frozen_sizes
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage import build_stage
from dtfm_protocol.model.stage_demand import smallest_stage_bytes

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
MODELS = {"llama": {"intermediate_size": 96, "num_key_value_heads": 2}, "gpt2": {}}


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    model = {"architecture": architecture} | SMALL | MODELS[architecture] | fields
    return resolve_config(Model.model_validate(model), 99, 64)


def training(layers: tuple[int, int] | None = None) -> Training:
    values = {"steps": 9, "global_batch": 4, "micro_batch": 2, "sequence_length": 16, "learning_rate": 1e-3}
    return Training.model_validate(values | ({"method": "frozen-layers", "layers": layers} if layers else {}))


def held(config: dict[str, Any], first: int, end: int) -> dict[str, int]:
    state = build_stage(config, first, end, torch.device("meta")).named_state()
    return {name: parameter.numel() for name, parameter in state.items()}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("layers", [(0, 1), (0, 3), (1, 3), (0, 4), (3, 4)])
def test_the_layers_are_frozen_and_what_comes_before_the_first_but_for_what_the_head_shares(
    architecture: str, tied: bool, layers: tuple[int, int]
) -> None:
    config = config_of(architecture, tie_word_embeddings=tied)
    found = frozen_names(config, training(layers))
    own = {name for name in held(config, *layers) if any(f".{layer}." in name for layer in range(*layers))}
    embedding = {"llama": {"model.embed_tokens.weight"}, "gpt2": {"transformer.wte.weight", "transformer.wpe.weight"}}
    before = embedding[architecture] - ({"model.embed_tokens.weight", "transformer.wte.weight"} if tied else set())
    assert found == own | (before if layers[0] == 0 else set())
    assert not frozen_names(config, training())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", MODELS)
def test_they_are_counted_by_stage(architecture: str, tied: bool) -> None:
    config = config_of(architecture, tie_word_embeddings=tied)
    names, sizes = frozen_names(config, training((0, 3))), frozen_sizes(config, training((0, 3)))
    for cut in ([0, 4], [0, 1, 4], [0, 2, 3, 4]):
        for first, end in pairwise(cut):
            counted = sum(size for name, size in held(config, first, end).items() if name in names)
            assert sizes.of_stage(first, end) == counted


def test_a_frozen_layer_takes_its_weights_alone() -> None:
    config = config_of("llama")
    layer = model_sizes(config).layer_parameters[1]
    whole = smallest_stage_bytes(config, training())
    frozen = smallest_stage_bytes(config, training((0, 3)))
    assert whole - frozen == (16 - 4) * layer


def test_layers_that_the_model_does_not_have_are_refused_in_a_line() -> None:
    config = config_of("llama")
    check_frozen(config, training((2, 4)))
    with pytest.raises(UserError) as caught:
        check_frozen(config, training((2, 5)))
    assert str(caught.value) == (
        "training.layers: [2, 5], but the model has 4 layers: give a run of them that ends with 4 at the most"
    )
