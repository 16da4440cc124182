"""The job's model becomes one whole config, or one line that names the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.model_config import build_config, dropout_in_words, resolve_config

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def resolve(architecture: str, fields: dict[str, Any], vocab_size: int = 256, sequence: int = 128) -> dict[str, Any]:
    return resolve_config(Model.model_validate({"architecture": architecture} | fields), vocab_size, sequence)


def folder(at: Path, fields: dict[str, Any]) -> Model:
    (at / "config.json").write_text(json.dumps(fields))
    return Model(path=at)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2", "gemma3_text"])
def test_a_resolved_config_is_json_and_builds_the_same_config_again(architecture: str) -> None:
    config = resolve(architecture, {"num_hidden_layers": 2})
    assert json.loads(json.dumps(config)) == config
    built = build_config(config)
    assert built.model_type == architecture
    assert (built.vocab_size, built.num_hidden_layers, built.use_cache) == (256, 2, False)
    assert {key: built.to_dict()[key] for key in config} == config


def test_common_names_reach_an_architecture_that_has_its_own() -> None:
    config = resolve("gpt2", {"hidden_size": 64, "n_layer": 3, "num_attention_heads": 4})
    assert (config["n_embd"], config["n_layer"], config["n_head"]) == (64, 3, 4)


def test_dropout_is_zero_unless_asked_for() -> None:
    config = resolve("gpt2", {})
    assert [config[key] for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop")] == [0, 0, 0]
    assert resolve("gpt2", {"attn_pdrop": 0.0})["attn_pdrop"] == 0


def test_dropout_of_a_folder_is_left_out_and_said(tmp_path: Path) -> None:
    values = {"model_type": "gpt2", "n_layer": 2, "attn_pdrop": 0.1, "resid_pdrop": 0.2, "embd_pdrop": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = resolve_config(Model(path=tmp_path), 256, 32)
    assert [config[key] for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop")] == [0, 0, 0]
    assert "asks for dropout (attn_pdrop, resid_pdrop)" in dropout_in_words(Model(path=tmp_path))
    assert dropout_in_words(Model(architecture="gpt2")) == ""


def test_token_ids_of_the_architectures_own_tokenizer_are_dropped() -> None:
    config = resolve("gemma2", {})
    assert [config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")] == [None] * 3
    assert resolve("llama", {"eos_token_id": 255})["eos_token_id"] == 255


def test_rotary_positions_reach_at_least_as_far_as_the_sequence() -> None:
    assert resolve("llama", {}, sequence=128)["max_position_embeddings"] == 2048
    assert resolve("llama", {}, sequence=4096)["max_position_embeddings"] == 4096


def test_learned_positions_are_as_many_as_the_sequence() -> None:
    assert resolve("gpt2", {}, sequence=128)["n_positions"] == 128
    assert resolve("gpt2", {}, sequence=4096)["n_positions"] == 4096
    assert resolve("gpt2", {"n_positions": 512}, sequence=128)["n_positions"] == 512


def test_a_rotary_base_may_be_given_by_its_old_name() -> None:
    assert resolve("llama", {"rope_theta": 5e5})["rope_parameters"]["rope_theta"] == 5e5


@pytest.mark.parametrize(
    ("architecture", "fields", "key"),
    [
        ("lama", {}, "model.architecture"),
        ("bert", {}, "model.architecture"),
        ("bart", {}, "model.architecture"),
        ("t5", {}, "model.architecture"),
        ("gemma3", {}, "model.architecture"),
        ("llama", {"hiden_size": 64}, "model.hiden_size"),
        ("llama", {"_attn_implementation": "x"}, "model._attn_implementation"),
        ("llama", {"hidden_size": 66, "num_attention_heads": 4}, "model.num_attention_heads"),
        ("qwen3", {"hidden_size": 66, "num_attention_heads": 4}, "model.num_attention_heads"),
        ("gpt2", {"n_embd": 66, "n_head": 4}, "model.n_head"),
        ("llama", {**SMALL, "num_key_value_heads": 3}, "model.num_key_value_heads"),
        ("mistral", {"hidden_size": 64, "num_attention_heads": 4}, "model.num_key_value_heads"),
        ("llama", {"hidden_size": 0}, "model.hidden_size"),
        ("llama", {"num_hidden_layers": -1}, "model.num_hidden_layers"),
        ("llama", {"num_attention_heads": 0}, "model.num_attention_heads"),
        ("gpt2", {"n_layer": 0}, "model.n_layer"),
        ("llama", {"rms_norm_eps": -1.0}, "model.rms_norm_eps"),
        ("llama", {"hidden_size": "64"}, "model.hidden_size"),
        ("llama", {"hidden_act": "sillu"}, "model.hidden_act"),
        ("llama", {"max_position_embeddings": 64}, "model.max_position_embeddings"),
        ("gpt2", {"n_positions": 64}, "model.n_positions"),
        ("gpt2", {"attn_pdrop": 0.1}, "model.attn_pdrop"),
        ("llama", {"attention_dropout": 0.1}, "model.attention_dropout"),
        ("llama", {"eos_token_id": 256}, "model.eos_token_id"),
        ("llama", {"eos_token_id": [1, 300]}, "model.eos_token_id"),
        ("llama", {"pad_token_id": -1}, "model.pad_token_id"),
        ("llama", {"use_cache": True}, "model.use_cache"),
        ("gpt2", {"n_embd": 64, "hidden_size": 64}, "model.hidden_size"),
        ("llama", {"num_hidden_layers": 2, "layer_types": ["x", "y"]}, "model.layer_types"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_that_names_the_key(
    architecture: str, fields: dict[str, Any], key: str
) -> None:
    with pytest.raises(UserError) as caught:
        resolve(architecture, fields)
    assert str(caught.value).startswith(f"{key}: ")
    assert "\n" not in str(caught.value)


def test_a_folder_brings_its_own_config(tmp_path: Path) -> None:
    saved = {"model_type": "llama", "vocab_size": 300, "torch_dtype": "bfloat16", "use_cache": True, "eos_token_id": 7}
    config = resolve_config(folder(tmp_path, saved | SMALL), 256, 128)
    assert (config["vocab_size"], config["dtype"], config["use_cache"], config["eos_token_id"]) == (
        300,
        "float32",
        False,
        7,
    )


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"model_type": "llama", "vocab_size": 255}, "vocab_size"),
        ({"model_type": "gpt2", "n_positions": 64}, "n_positions"),
        ({"model_type": "llama", "quantization_config": {}}, "quantization_config"),
        ({"model_type": "bert"}, "model_type"),
        ({}, "model_type"),
    ],
)
def test_a_folders_config_is_held_to_the_same_rules(tmp_path: Path, fields: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=rf"config\.json: {key}: [^\n]+$"):
        resolve_config(folder(tmp_path, fields), 256, 128)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^model\.path: cannot read .*config\.json"):
        resolve_config(Model(path=tmp_path), 256, 128)


@pytest.mark.parametrize(
    "change",
    [
        {"attn_implementation": "someone/kernel"},
        {"_experts_implementation": "someone/kernel"},
        {"auto_map": {"AutoModelForCausalLM": "code.py"}},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": "2"},
        {"model_type": ["llama"]},
        {"hidden_size": []},
    ],
)
def test_a_config_from_the_network_can_neither_load_code_nor_exhaust_a_peer(change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^[^\n]+$"):
        build_config(resolve("llama", SMALL) | change)
