"""Weights of a folder, read layer by layer: those that `transformers` loads, in the memory of one layer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Model
from dtfm_protocol.model.base_source import part_of, read_parts
from dtfm_protocol.model.model_config import build_config, resolve_config
from dtfm_protocol.model.slicing_check import TESTED
from dtfm_protocol.model.tiny_model import tiny_config
from dtfm_protocol.model.whole_model import build_whole


def config_of(architecture: str, **fields: Any) -> dict[str, Any]:
    return tiny_config(resolve_config(Model.model_validate({"architecture": architecture, **fields}), 300, 32))


@pytest.mark.parametrize("architecture", [*TESTED, "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_they_are_what_transformers_loads_of_files_of_any_type(
    tmp_path: Path, architecture: str, dtype: torch.dtype
) -> None:
    """In several files with an index; experts' matrices are stacked as they are loaded."""
    config = config_of(architecture)
    build_whole(config, seed=3).to(dtype).save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, config=build_config(config))
    parts = list(read_parts(tmp_path, config))
    assert len(parts) == build_config(config).num_hidden_layers + 2
    assert all(part_of(config, name) == number for number, part in enumerate(parts) for name in part)
    found = {name: value for part in parts for name, value in part.items()}
    wanted = dict(loaded.named_parameters())
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype == torch.float32
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_folder_of_the_base_model_alone_is_read_by_its_prefix(tmp_path: Path, architecture: str) -> None:
    config = config_of(architecture, tie_word_embeddings=True)
    whole = build_whole(config, seed=3)
    whole.base_model.save_pretrained(tmp_path)
    found = {name: value for part in read_parts(tmp_path, config) for name, value in part.items()}
    assert all(torch.equal(found[name], value) for name, value in whole.named_parameters())


def test_a_tied_matrix_is_taken_under_either_name_and_refused_where_both_differ(tmp_path: Path) -> None:
    config = config_of("llama", tie_word_embeddings=True)
    build_whole(config, seed=3).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    matrix = tensors.pop("model.embed_tokens.weight")
    for saved in ({"lm_head.weight": matrix}, {"lm_head.weight": matrix, "model.embed_tokens.weight": matrix.clone()}):
        save_file(tensors | saved, path, metadata={"format": "pt"})
        assert torch.equal(next(read_parts(tmp_path, config))["model.embed_tokens.weight"], matrix)
    save_file(tensors | {"lm_head.weight": matrix, "model.embed_tokens.weight": matrix + 1}, path)
    with pytest.raises(UserError, match="are one matrix: set tie_word_embeddings to false") as caught:
        next(read_parts(tmp_path, config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.input_layernorm.weight"])
def test_a_parameter_that_lacks_is_named_also_one_that_begins_as_a_constant(tmp_path: Path, name: str) -> None:
    config = config_of("llama")
    build_whole(config, seed=3).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=f"lack {name}"):
        list(read_parts(tmp_path, config))


PROGRAM = """
import json, os, resource, sys
from pathlib import Path
from dtfm_protocol.model.base_source import read_parts
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.model.base_forms import Form
from dtfm_protocol.model.base_values import piece_tensors
from dtfm_protocol.process.memory_limit import data_bytes

folder, config, room, held = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), []
how = "let go"
if copy := os.fork():  # before there are threads
    let_go = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    print(let_go, len(list((folder / "base").iterdir())), flush=True)
    how = "hold"
parts, pieces = read_parts(folder, config), PieceFolder(folder / "base")
pieces.write(piece_tensors(values := next(parts), {name: Form("F32") for name in values}))
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + room,) * 2)
for values in parts:
    pieces.write(piece_tensors(values, {name: Form("F32") for name in values}))
    if how == "hold":
        held.append(values)
"""
"""Reads all parts in a copy of the process, then itself; says the copy's exit code and how many pieces it has left."""


@pytest.mark.process
def test_a_model_of_many_layers_takes_the_memory_of_a_few(tmp_path: Path) -> None:
    """The system refuses memory above it: 20 layers of 12 MB are read with room for eight, but cannot be held in it."""
    fields = {"hidden_size": 512, "intermediate_size": 1280, "num_hidden_layers": 20, "num_attention_heads": 8}
    config = resolve_config(Model.model_validate({"architecture": "llama", **fields}), 300, 32)
    # In bf16, as fp32 values would be read from the mapped files, and take no memory of their own.
    build_whole(config, seed=0).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="60MB")
    layer = sum(2 * value.nbytes for name, value in load_layers(tmp_path).items() if ".layers.7." in name)
    assert 11e6 < layer < 14e6

    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(config), str(8 * layer)]
    # Threads that load could not be told of memory that is refused.
    environment = os.environ | {"HF_DEACTIVATE_ASYNC_LOAD": "1"}
    done = subprocess.run(arguments, capture_output=True, env=environment, text=True, check=False)
    assert done.stdout.split() == ["0", "22"], done.stderr
    assert done.returncode != 0


def load_layers(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
