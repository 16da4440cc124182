"""The weights in a model's folder are those of its config, or the job is refused before any text is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from dtfm_protocol.checkpoint.shard import decode_tensor, describe_shard
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job, Model
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.pretrained_weights import check_weights, has_weights

pytestmark = pytest.mark.unit


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder with a tiny llama of two layers."""
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=300,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    return tmp_path


def check(folder: Path) -> None:
    check_weights(folder, resolve_config(Model(path=folder), 257, 8))


def rewrite(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def test_weights_of_the_config_are_taken(llama: Path) -> None:
    assert has_weights(llama)
    check(llama)


def test_weights_that_are_saved_without_the_head_around_them_are_taken(tmp_path: Path) -> None:
    """As GPT-2's are, with tied embeddings."""
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 300, "n_positions": 8}
    quiet = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "summary_first_dropout": 0.0}
    model = AutoModelForCausalLM.from_config(GPT2Config(**shape, **quiet, bos_token_id=None, eos_token_id=None))
    model.base_model.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    check(tmp_path)


def test_a_tensor_of_another_shape_is_named(llama: Path) -> None:
    rewrite(llama, intermediate_size=48)
    with pytest.raises(UserError, match=r"mlp\.gate_proj\.weight is 32 x 16 there and 48 x 16 by the config"):
        check(llama)


def test_a_layer_that_is_not_there_is_named(llama: Path) -> None:
    """`transformers` would draw it at random, and go on."""
    rewrite(llama, num_hidden_layers=3)
    with pytest.raises(UserError, match=r"lack model\.layers\.2\."):
        check(llama)


def test_weights_in_several_files_are_found_by_their_index(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, llama / file)
    weights = {name: file for file, held in parts.items() for name in held}
    (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    check(llama)
    (llama / "two.safetensors").unlink()
    with pytest.raises(UserError, match=r"two\.safetensors"):
        check(llama)


def test_a_damaged_file_is_named(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"cannot read the weights in .*model\.safetensors"):
        check(llama)


def test_weights_that_would_be_passed_over_are_refused(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin, which is not safetensors"):
        has_weights(llama)
    (llama / "pytorch_model.bin").unlink()
    assert not has_weights(llama)


@pytest.mark.parametrize(("kept", "dtype"), [("fp32", "F32"), ("bf16", "BF16")])
def test_training_begins_with_them_in_what_the_job_keeps_weights_in(llama: Path, kept: str, dtype: str) -> None:
    (llama / "text.txt").write_text("to be or not to be, that is the question. " * 40)
    training = {"steps": 2, "global_batch": 2, "micro_batch": 1, "sequence_length": 8, "learning_rate": 1e-3}
    values = {
        "name": "tuned",
        "model": {"path": str(llama)},
        "data": {"text": [str(llama / "text.txt")]},
        "training": training | {"weights": kept},
    }
    job = prepare(Job.read(values, "job.toml"), llama / "state", lambda _: None)
    given, found = load_file(llama / "model.safetensors"), dict[str, torch.Tensor]()
    for piece in job.base:
        data = (llama / "state" / "base" / f"{piece.sha256}.safetensors").read_bytes()
        for key, entry in describe_shard("piece.safetensors", data)[1].items():
            assert entry.dtype == dtype
            found[key.removeprefix("weight/")] = decode_tensor(entry, data[entry.offset : entry.offset + entry.bytes])
    assert found.keys() == given.keys()
    assert all(torch.equal(value, given[name].to(value.dtype)) for name, value in found.items())
