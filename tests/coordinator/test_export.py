"""A checkpoint becomes a model that `transformers` loads, and writes text."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from dtfm_coordinator.serve.job_edits import remember
from dtfm_coordinator.serve.model_shelf import pinned
from dtfm_coordinator.tools.export import export, load_checkpoint
from dtfm_coordinator.tools.formatting import amount
from dtfm_coordinator.tools.generate import generate, sample
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.shard import encode_shard
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.data.tokenizer import make_tokenizer, save
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Job, Model, Planning, Training
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.model.base_values import frozen_values
from dtfm_protocol.model.frozen_parameters import frozen_names
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.model.lora import adapter_shapes
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.whole_model import build_whole
from dtfm_protocol.process.logs import log
from tests.harness.begun_base import begun_with

LENGTH = 24
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
MODELS = {
    "llama": Model(architecture="llama", **SIZES),
    "llama tied": Model(architecture="llama", tie_word_embeddings=True, **SIZES),
    "gpt2": Model(architecture="gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=LENGTH),
    "qwen2": Model(architecture="qwen2", **SIZES),
}


def trained(state_dir: Path, model: Model, tokenizer: str = "bytes", step: int = 50) -> Any:
    """A state dir with a checkpoint and a tokenizer; the model that the checkpoint was taken from."""
    made = make_tokenizer(Data(text="cpython", tokenizer=tokenizer), ["the cat sat on the mat"])
    save(made, state_dir / "tokenizer")
    config = resolve_config(model, len(made), LENGTH)
    whole = build_whole(config, seed=step).eval()
    keep(state_dir, config, {name: value.detach() for name, value in whole.named_parameters()}, step)
    return whole


def keep(state_dir: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], step: int = 50) -> None:
    """A checkpoint in two files, as two stages hand them in."""
    names = sorted(weights)
    with CheckpointStore(state_dir / "checkpoints").draft(step) as draft:
        files, tensors = [], {}
        for stage in range(2):
            name = f"stage-{stage}.safetensors"
            part = {f"weight/{key}": weights[key] for key in names[stage::2]}
            part |= {f"exp_avg/{key}": torch.zeros_like(weights[key]) for key in names[stage::2]}
            draft.add(name, encode_shard(part))
            file, entries = draft.describe(name)
            files.append(file)
            tensors.update(entries)
        draft.commit(Manifest(job="job", config=config, step=step, plan_version=1, files=tuple(files), tensors=tensors))


@pytest.mark.parametrize("name", ["llama", "llama tied", "gpt2"])
def test_the_exported_model_gives_the_logits_of_the_one_that_was_trained(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = trained(tmp_path / "state", MODELS[name])
    out = tmp_path / "deep" / "out"
    assert export(tmp_path / "state", out).step == 50
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    model, report = AutoModelForCausalLM.from_pretrained(out, local_files_only=True, output_loading_info=True)
    assert not any(report.values())
    tokens = torch.randint(257, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, whole(tokens).logits)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == (name != "llama")
    assert model.dtype == torch.float32
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:265"])
def test_the_exported_folder_has_the_tokenizer_and_knows_where_a_text_ends(tmp_path: Path, tokenizer: str) -> None:
    trained(tmp_path / "state", MODELS["llama"], tokenizer)
    out = tmp_path / "out"
    out.mkdir()  # an empty folder may be there
    export(tmp_path / "state", out)
    loaded = AutoTokenizer.from_pretrained(out, local_files_only=True)
    ours = AutoTokenizer.from_pretrained(tmp_path / "state" / "tokenizer", local_files_only=True)
    assert loaded.backend_tokenizer.to_str() == ours.backend_tokenizer.to_str()
    end = ours.eos_token_id
    model = AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    for config in (model.config, model.generation_config):
        assert (config.bos_token_id, config.eos_token_id, config.use_cache) == (end, end, True)
    assert model.generation_config.pad_token_id == end
    inputs = loaded("the cat", return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert loaded.decode(written[0]).startswith("the cat")
    values = json.loads((out / "config.json").read_text())
    assert values["architectures"] == ["LlamaForCausalLM"]


def test_an_architecture_that_brings_its_own_tokenizer_is_told_of(tmp_path: Path) -> None:
    """`AutoTokenizer` gives a qwen2 model the splitting of Qwen2's own tokenizer."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    trained(tmp_path / "state", MODELS["qwen2"])
    handler = Lines()
    log.addHandler(handler)
    try:
        export(tmp_path / "state", tmp_path / "out")
    finally:
        log.removeHandler(handler)
    assert len(lines) == 1
    assert "load the tokenizer with PreTrainedTokenizerFast" in lines[0]


def test_the_newest_whole_checkpoint_is_exported_and_a_draft_beside_it_is_left_alone(tmp_path: Path) -> None:
    for step in (50, 100, 150):
        trained(tmp_path, MODELS["llama"], step=step)
    (tmp_path / "checkpoints" / "step-00000150" / "stage-1.safetensors").write_bytes(b"torn")
    with CheckpointStore(tmp_path / "checkpoints").draft(200) as draft:
        draft.add("stage-0.safetensors", b"half")
        assert export(tmp_path, tmp_path / "out").step == 100
        assert len(list((tmp_path / "checkpoints").glob(".draft-*/stage-0.safetensors"))) == 1


def job_of(state_dir: Path, config: dict[str, Any], *, pretrained: bool, **keys: Any) -> ResolvedJob:
    """A job, written to the state dir, that trains all but its first layer and the embedding, if not something else."""
    keys = keys or {"method": "frozen-layers", "layers": (0, 1)}
    training = {"steps": 50, "global_batch": 1, "micro_batch": 1, "sequence_length": LENGTH, "learning_rate": 1e-3}
    job = ResolvedJob(
        name="job",
        config=config,
        pretrained=pretrained,
        corpus=Corpus(dtype="uint16", vocab_size=257, shards=(Shard(sha256="0" * 64, tokens=1000),)),
        training=Training.model_validate(training | keys | {"seed": 3}),
        evaluation=Evaluation(),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )
    (state_dir / "job.json").write_text(job.model_dump_json())
    return job


def begin(state_dir: Path, job: ResolvedJob, base: Any) -> ResolvedJob:
    """Have a job begin with the weights of a model."""
    weights = {name: value.detach() for name, value in base.named_parameters()}
    job = begun_with(job, weights, PieceFolder(state_dir / "base"))
    (state_dir / "job.json").write_text(job.model_dump_json())
    return job


@pytest.mark.parametrize("pretrained", [False, True], ids=["drawn", "pretrained"])
@pytest.mark.parametrize("name", ["llama", "llama tied"])
def test_what_was_not_trained_is_exported_as_the_job_began(tmp_path: Path, name: str, pretrained: bool) -> None:
    state_dir, out = tmp_path / "state", tmp_path / "out"
    save(make_tokenizer(Data(text="cpython"), []), state_dir / "tokenizer")
    config = resolve_config(MODELS[name], 257, LENGTH)
    job = job_of(state_dir, config, pretrained=pretrained)
    begun, now = build_whole(config, seed=1), {n: p.detach() for n, p in build_whole(config, seed=2).named_parameters()}
    frozen = frozen_names(config, job.training)
    assert ("model.embed_tokens.weight" in frozen) == (name == "llama")
    if pretrained:
        job = begin(state_dir, job, begun)
    keep(state_dir, config, {name: value for name, value in now.items() if name not in frozen})
    with pinned(state_dir, 50, tmp_path / "source") as source:  # as a coordinator has it written for members
        export(source, out)
    found = AutoModelForCausalLM.from_pretrained(out, local_files_only=True)
    for key, value in found.named_parameters():
        wanted = now[key]
        if key in frozen:
            wanted = begun.get_parameter(key) if pretrained else initial_value(config, 3, key, value.shape)
        assert torch.equal(value, wanted), key
    total = sum(value.numel() for value in found.parameters())
    card = (out / "README.md").read_text()
    assert f"with {amount(total)} parameters" in card
    assert "| Not trained | decoder layers [0, 1), which are as they began |" in card
    if pretrained:
        shutil.rmtree(state_dir / "base")
        with pytest.raises(UserError, match="cannot load the model") as caught:
            export(state_dir, tmp_path / "other")
        one_line(caught)


@pytest.mark.parametrize(("name", "targets"), [("llama tied", ["q_proj", "down_proj"]), ("gpt2", ["c_attn"])])
def test_adapters_are_exported_as_peft_loads_them_or_merged_into_the_model(
    tmp_path: Path, name: str, targets: list[str]
) -> None:
    save(make_tokenizer(Data(text="cpython"), []), tmp_path / "tokenizer")
    config, lora = resolve_config(MODELS[name], 257, LENGTH), {"r": 2, "lora_alpha": 6.0, "target_modules": targets}
    job = job_of(tmp_path, config, pretrained=True, method="lora", lora=lora)
    base = build_whole(config, seed=1).eval()
    job = begin(tmp_path, job, base)
    shapes = adapter_shapes(config, job.training.lora)
    drawn = torch.Generator().manual_seed(3)
    keep(tmp_path, config, {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()})
    export(tmp_path, tmp_path / "adapters")
    export(tmp_path, tmp_path / "whole", merge=True)
    tokens = torch.randint(257, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", local_files_only=True)
    with torch.no_grad():
        before = base(tokens).logits
        logits = PeftModel.from_pretrained(base, tmp_path / "adapters")(tokens).logits
        assert torch.allclose(whole(tokens).logits, logits, atol=1e-4)
    assert not torch.allclose(before, logits, atol=1e-2)
    cards = [(tmp_path / folder / "README.md").read_text() for folder in ("adapters", "whole")]
    assert ["library_name: peft" in card for card in cards] == [True, False]
    assert ["PeftModel.from_pretrained" in card for card in cards] == [True, False]
    assert all(f"matrices of rank 2 beside {', '.join(targets)} (LoRA)" in card for card in cards)
    files = {path.name for path in (tmp_path / "adapters").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= files
    assert "model.safetensors" not in files
    assert generate(tmp_path, "the", 3, 0.0, seed=1)


@pytest.mark.parametrize(("name", "targets"), [("llama tied", ["q_proj", "down_proj"]), ("gpt2", ["c_attn"])])
@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_adapters_beside_rounded_weights_are_merged_into_those_that_were_given(
    tmp_path: Path, name: str, targets: list[str], form: str
) -> None:
    """Into the bf16 ones, widened, and not into int8 ones; what the run writes itself is of those it was trained on."""
    save(make_tokenizer(Data(text="cpython"), []), tmp_path / "tokenizer")
    config = resolve_config(MODELS[name], 257, LENGTH)
    lora = {"r": 2, "lora_alpha": 6.0, "target_modules": targets, "base": form}
    job, base = job_of(tmp_path, config, pretrained=True, method="lora", lora=lora), build_whole(config, seed=1).eval()
    base.save_pretrained(tmp_path / "given")
    job = begin(tmp_path, job, base)
    model = Model(path=tmp_path / "given")
    remember(Job(name="job", model=model, data=Data(text="cpython"), training=job.training), tmp_path)
    drawn = torch.Generator().manual_seed(3)
    shapes = adapter_shapes(config, job.training.lora)
    keep(tmp_path, config, {key: torch.randn(shape, generator=drawn) for key, shape in shapes.items()})
    export(tmp_path, tmp_path / "adapters")
    export(tmp_path, tmp_path / "whole", merge=True)
    given = AutoModelForCausalLM.from_pretrained(tmp_path / "given")
    if form == "bf16":
        decoded = dict(frozen_values(job, PieceFolder(tmp_path / "base")))
        given.load_state_dict(decoded, strict=False)
        assert any(not torch.equal(decoded[key], value) for key, value in base.named_parameters())
    tokens = torch.randint(257, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(given, tmp_path / "adapters")(tokens).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")(tokens).logits
    assert torch.allclose(found, wanted, atol=1e-4)
    trained_on, _, _ = load_checkpoint(tmp_path)
    for key, value in frozen_values(job, PieceFolder(tmp_path / "base")):
        if not any(f"{target}." in key for target in targets):
            assert torch.equal(trained_on.get_parameter(key), value)
    if form == "int8":
        build_whole(config, seed=2).save_pretrained(tmp_path / "given")
        with pytest.raises(UserError, match="not those with which this run has begun") as caught:
            export(tmp_path, tmp_path / "other", merge=True)
        one_line(caught)
        shutil.rmtree(tmp_path / "given")
        with pytest.raises(UserError, match="is not there any more") as caught:
            export(tmp_path, tmp_path / "other", merge=True)
        one_line(caught)


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_a_checkpoint_or_a_tokenizer_there_is_one_line(tmp_path: Path) -> None:
    for use in (lambda: export(tmp_path, tmp_path / "out"), lambda: generate(tmp_path, "x", 5, 1.0, 0)):
        with pytest.raises(UserError, match="there is no checkpoint in") as caught:
            use()
        one_line(caught)
    keep(tmp_path, {"model_type": "llama"}, {"a": torch.zeros(1), "b": torch.zeros(1)})
    with pytest.raises(UserError, match="no tokenizer folder"):
        export(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    for out in (tmp_path / "out", tmp_path / "out" / "mine"):
        with pytest.raises(UserError, match="is there already") as caught:
            export(tmp_path, out)
        one_line(caught)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    trained(tmp_path / "state", MODELS["llama"])
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*/file/out: .*Not a directory") as caught:
        export(tmp_path / "state", tmp_path / "file" / "out")
    one_line(caught)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "it lacks model.norm.weight"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "it has extra, which the model has not"),
        (lambda weights: weights.update({"model.norm.weight": torch.zeros(31)}), "size mismatch for model.norm.weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_config_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    whole = trained(tmp_path / "other", MODELS["llama"])
    save(make_tokenizer(Data(text="cpython"), []), tmp_path / "tokenizer")
    weights = {name: value.detach() for name, value in whole.named_parameters()}
    change(weights)
    keep(tmp_path, resolve_config(MODELS["llama"], 257, LENGTH), weights)
    with pytest.raises(UserError, match="does not fit its config") as caught:
        export(tmp_path, tmp_path / "out")
    assert message in one_line(caught)


@pytest.mark.parametrize("name", ["llama tied", "gpt2"])
def test_text_is_a_function_of_the_seed(tmp_path: Path, name: str) -> None:
    trained(tmp_path, MODELS[name])
    text = generate(tmp_path, "the", 40, 1.0, seed=1)
    assert generate(tmp_path, "the", 40, 1.0, seed=1) == text
    assert generate(tmp_path, "the", 40, 1.0, seed=2) != text
    assert generate(tmp_path, "the", 40, 0.0, seed=1) == generate(tmp_path, "the", 40, 1e-9, seed=2)
    assert "<|endoftext|>" not in generate(tmp_path, "", 5, 1.0, seed=1)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_each_token_is_the_likeliest_after_as_many_as_the_model_can_see(name: str, tmp_path: Path) -> None:
    """What is kept between tokens changes nothing: the reference sees the last tokens afresh each time."""
    whole = trained(tmp_path, MODELS[name])
    given = list(b"the cat")
    written = sample(whole, given, 3 * LENGTH, 0.0, 0, None, 257)
    assert len(written) == 3 * LENGTH
    tokens = list(given)
    with torch.no_grad():
        for token in written:
            assert token == int(whole(torch.tensor([tokens[-LENGTH:]])).logits[0, -1].argmax())
            tokens.append(token)


def test_the_end_of_text_stops_and_is_not_written(tmp_path: Path) -> None:
    whole = trained(tmp_path, MODELS["llama"])
    free = sample(whole, [1, 2, 3], 20, 1.0, 5, None, 257)
    end = free[7]
    assert sample(whole, [1, 2, 3], 20, 1.0, 5, end, 257) == free[: free.index(end)]


def test_a_token_that_the_tokenizer_does_not_have_is_never_drawn(tmp_path: Path) -> None:
    whole = trained(tmp_path, MODELS["llama"])
    assert max(sample(whole, [1], 60, 5.0, 0, None, 10)) < 10


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1.0, 0), "cannot generate 0 tokens"),
        ((5, -1.0, 0), "temperature -1.0 is out of range"),
        ((5, float("nan"), 0), "temperature nan is out of range"),
        ((5, 1.0, -1), "seed -1 is out of range"),
    ],
)
def test_a_number_out_of_range_is_refused(tmp_path: Path, numbers: tuple[int, float, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generate(tmp_path, "x", *numbers)
