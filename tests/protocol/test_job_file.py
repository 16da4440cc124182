"""The job file: every mistake names its key, and the schedule of the learning rate is the one that is promised."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job, Wire
from dtfm_protocol.schema import faults_in_words, needs_of

GOOD = """
name = "demo"
[model]
architecture = "llama"
hidden_size = 64
[data]
text = ["*.txt", "more/a.md"]
tokenizer = "bytes"
[training]
steps = 100
global_batch = 12
micro_batch = 4
sequence_length = 32
learning_rate = 1e-3
[evaluation]
every = 10
[plan]
stages = 2
replicas = "auto"
schedule = "gpipe"
wire = "bf16"
[checkpoint]
every = 25
"""


def job_file(folder: Path, text: str = GOOD) -> Path:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def with_values(changes: dict[str, Any]) -> dict[str, Any]:
    """The good job's values with `table.key` set, or taken away where the value is None."""
    values = tomllib.loads(GOOD)
    for where, value in changes.items():
        table, _, key = where.rpartition(".")
        target = values.setdefault(table, {}) if table else values
        if value is None:
            del target[key]
        else:
            target[key] = value
    return values


def complaint(changes: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        Job.read(with_values(changes), "job.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_job_file_says_what_it_says(tmp_path: Path) -> None:
    job = Job.load(job_file(tmp_path))
    assert job.name == "demo"
    assert job.model.architecture == "llama"
    assert job.model.fields == {"hidden_size": 64}
    assert (job.training.micro_batches, job.training.tokens) == (3, 12 * 32)
    assert (job.evaluation.every, job.plan.schedule, job.checkpoint.every) == (10, "gpipe", 25)
    assert job.plan.wire == Wire(activations="bf16", gradients="bf16")


def test_what_may_be_left_out_has_defaults(tmp_path: Path) -> None:
    job = Job.load(job_file(tmp_path, GOOD.partition("[evaluation]")[0]))
    assert job.evaluation.every == 0
    assert (job.plan.stages, job.plan.replicas, job.plan.schedule, job.plan.wire) == ("auto", "auto", "auto", Wire())
    assert job.plan.wire == Wire(activations="fp32", gradients="fp32")
    assert (job.training.clip_norm, job.training.precision, job.training.seed) == (1.0, "fp32", 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"stepz": 1}, "stepz: unknown key"),
        ({"data.texts": ["a"]}, "data.texts: unknown key"),
        ({"training.step": 1}, "training.step: unknown key"),
        ({"evaluation.often": 1}, "evaluation.often: unknown key"),
        ({"plan.stage": 1}, "plan.stage: unknown key"),
        ({"checkpoint.steps": 1}, "checkpoint.steps: unknown key"),
        ({"optimizer.beta": 1}, "optimizer: unknown key"),
        ({"training.steps": None, "training.step": 1}, "training.step: unknown key"),
    ],
)
def test_an_unknown_key_is_named_at_every_level(changes: dict[str, Any], named: str) -> None:
    assert complaint(changes).partition(";")[0] == f"job.toml: {named}"


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({"training.step": 1}, "did you mean steps?"),
        ({"data.texts": ["a"]}, "did you mean text?"),
        ({"trainning.steps": 1}, "did you mean training?"),
        ({"evaluation.zzz": 1}, "the keys here are every, sequences, sets"),
    ],
)
def test_a_key_that_is_near_another_is_taken_for_a_misspelt_one(changes: dict[str, Any], meant: str) -> None:
    assert complaint(changes).partition("unknown key")[2].removeprefix("; ") == meant


@pytest.mark.parametrize(
    "key",
    ["name"]
    + [f"training.{key}" for key in ("steps", "global_batch", "micro_batch", "sequence_length", "learning_rate")],
)
def test_a_missing_key_is_named(key: str) -> None:
    assert complaint({key: None}) == f"job.toml: {key}: this key is missing"


@pytest.mark.parametrize("table", ["model", "data", "training"])
def test_a_missing_table_is_named(table: str) -> None:
    values = tomllib.loads(GOOD)
    del values[table]
    with pytest.raises(UserError, match=f"^job.toml: {table}: this key is missing$"):
        Job.read(values, "job.toml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", "../up"),
        ("name", "a b"),
        ("name", "x" * 65),
        ("name", 3),
        ("model.architecture", 3),
        ("data.text", []),
        ("data.text", [3]),
        ("data.tokenizer", 3),
        ("training.steps", -1),
        ("training.steps", 0),
        ("training.steps", 1.5),
        ("training.steps", "many"),
        ("training.steps", "10"),
        ("training.steps", True),
        ("training.steps", [1]),
        ("training.global_batch", -12),
        ("training.micro_batch", 0),
        ("training.micro_batch", 5),
        ("training.sequence_length", -1),
        ("training.learning_rate", 0.0),
        ("training.learning_rate", -1e-3),
        ("training.learning_rate", math.nan),
        ("training.learning_rate", math.inf),
        ("training.weight_decay", -0.1),
        ("training.warmup_steps", -1),
        ("training.warmup_steps", 101),
        ("training.clip_norm", -1.0),
        ("training.clip_norm", math.nan),
        ("training.precision", "fp16"),
        ("training.seed", -1),
        ("evaluation.every", -1),
        ("evaluation.sequences", 0),
        ("plan.stages", 0),
        ("plan.stages", "some"),
        ("plan.replicas", -2),
        ("plan.schedule", "zb"),
        ("plan.wire", "int4"),
        ("plan.wire", 8),
        ("plan.wire", {"activations": "int4"}),
        ("plan.wire", {"gradients": 8}),
        ("plan.wire", {"weights": "fp16"}),
        ("checkpoint.every", -1),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_key(key: str, value: object) -> None:
    text = complaint({key: value})
    table, _, name = key.rpartition(".")
    assert text.startswith("job.toml: " + (table or name))
    assert name in text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("plan.schedule", "x", "should be '1f1b', 'gpipe', 'zero-bubble' or 'auto' (got 'x')"),
        ("plan.stages", "some", "should be a whole number or 'auto' (got 'some')"),
        ("plan.replicas", 0, "should be greater than 0 or 'auto' (got 0)"),
        ("training.precision", "fp16", "should be 'fp32' or 'bf16' (got 'fp16')"),
        ("training.steps", 1.5, "should be a whole number (got 1.5)"),
    ],
)
def test_a_wrong_value_is_answered_with_all_that_would_do(key: str, value: object, said: str) -> None:
    assert complaint({key: value}) == f"job.toml: {key}: {said}"
    with pytest.raises(ValidationError) as caught:
        Job.model_validate(with_values({key: value}))
    assert faults_in_words(Job, caught.value) == [f"{key}: {said}"]


@pytest.mark.parametrize(
    ("line", "wire"),
    [
        ('wire = "bf16"', Wire(activations="bf16", gradients="bf16")),
        ('wire = "int8"', Wire(activations="int8", gradients="int8")),
        ('wire = {activations = "int8", gradients = "fp16"}', Wire(activations="int8", gradients="fp16")),
        ('wire = {gradients = "int8"}', Wire(activations="fp32", gradients="int8")),
    ],
)
def test_the_wire_is_one_codec_or_one_a_direction(tmp_path: Path, line: str, wire: Wire) -> None:
    assert Job.load(job_file(tmp_path, GOOD.replace('wire = "bf16"', line))).plan.wire == wire


@pytest.mark.parametrize(
    ("wire", "named"),
    [
        ("int4", "plan.wire.activations: "),
        ({"gradients": "int4"}, "plan.wire.gradients: "),
        ({"activations": "int8", "weights": "fp16"}, "plan.wire.weights: unknown key"),
    ],
)
def test_a_wire_that_cannot_be_is_named_to_the_last_key(wire: object, named: str) -> None:
    assert complaint({"plan.wire": wire}).startswith(f"job.toml: {named}")


@pytest.mark.parametrize(
    ("wire", "slow", "coarse"),
    [
        ("bf16", "int8", Wire(activations="int8", gradients="int8")),
        ("fp32", "bf16", Wire(activations="bf16", gradients="bf16")),
        ({"activations": "int8", "gradients": "fp32"}, "fp16", Wire(activations="int8", gradients="fp16")),
        ({"activations": "bf16", "gradients": "int8"}, "int8", Wire(activations="int8", gradients="int8")),
        ("int8", "none", Wire(activations="int8", gradients="int8")),
    ],
)
def test_a_slow_wire_stands_in_where_it_takes_fewer_bytes(wire: object, slow: str, coarse: Wire) -> None:
    plan = Job.read(with_values({"plan.wire": wire, "plan.slow_wire": slow}), "job.toml").plan
    assert plan.coarse_wire == coarse
    assert ("slow_wire" in plan.model_dump()) == (slow != "none")


@pytest.mark.parametrize(
    ("wire", "slow", "said"),
    [
        ("int8", "int8", 'plan: slow_wire: "int8" takes no fewer bytes than the wire, int8: name a coarser codec'),
        ("bf16", "fp16", 'slow_wire: "fp16" takes no fewer bytes than the wire, bf16'),
        ({"activations": "int8", "gradients": "fp16"}, "bf16", "the wire, int8 activations, fp16 gradients: name"),
        ("bf16", "int4", "plan.slow_wire: should be 'none', 'fp16', 'bf16' or 'int8' (got 'int4')"),
    ],
)
def test_a_slow_wire_that_saves_nothing_is_refused(wire: object, slow: str, said: str) -> None:
    text = complaint({"plan.wire": wire, "plan.slow_wire": slow})
    assert said in text
    assert "\n" not in text


@pytest.mark.parametrize("schedule", ["auto", "1f1b", "gpipe", "zero-bubble"])
def test_every_schedule_can_be_asked_for(schedule: str) -> None:
    assert Job.read(with_values({"plan.schedule": schedule}), "job.toml").plan.schedule == schedule


def test_a_micro_batch_that_does_not_divide_the_global_batch_says_both_numbers() -> None:
    assert "global_batch (12) is not a multiple of micro_batch (5)" in complaint({"training.micro_batch": 5})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.layers": [0, 1]}, "layers: given, but method = 'full'"),
        ({"training.method": "frozen-layers"}, "layers: not given, but method = 'frozen-layers'"),
        ({"training.method": "frozen-layers", "training.layers": [2, 2]}, "layers: [2, 2] is no run of layers"),
        ({"training.method": "frozen-layers", "training.layers": [-1, 2]}, "layers.0"),
        ({"training.method": "frozen-layers", "training.layers": [1]}, "layers.1"),
        ({"training.method": "lora"}, "lora.target_modules: not given, but method = 'lora'"),
        ({"lora": {"target_modules": ["q_proj"]}}, "lora.target_modules: given, but method = 'full'"),
        ({"training.method": "lora", "lora": {"rank": 4, "target_modules": ["q"]}}, "lora.rank: unknown key"),
        ({"training.method": "lora", "lora": {"r": 0, "target_modules": ["q"]}}, "lora.r: should be greater"),
        (
            {"training.method": "lora", "lora": {"target_modules": ["q"]}, "training.weights": "bf16"},
            'weights: "bf16" goes with method = "full" alone',
        ),
    ],
)
def test_layers_and_adapters_come_with_the_method_that_takes_them(changes: dict[str, Any], said: str) -> None:
    assert complaint(changes).startswith("job.toml: training")
    assert said in complaint(changes)


def test_a_wrong_key_of_a_table_of_its_own_is_called_as_the_file_calls_it(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    demo = (Path(__file__).parents[2] / "examples" / "demo.toml").read_text(encoding="utf-8")
    table = '[lora]\nr = 0\ntarget_modules = ["q_proj"]\n'
    file.write_text(demo.replace("[training]\n", '[training]\nmethod = "lora"\n') + table, encoding="utf-8")
    with pytest.raises(UserError) as refused:
        Job.load(file)
    assert "job.toml: lora.r: should be greater than 0" in str(refused.value)


def test_what_is_trained_must_be_known_by_all_who_train() -> None:
    job = Job.read(with_values({"training.method": "frozen-layers", "training.layers": [0, 8]}), "job.toml")
    assert needs_of(job) == ("training.method", "training.layers")
    lora = {"training.method": "lora", "lora": {"r": 4, "target_modules": ["q_proj"]}}
    assert needs_of(Job.read(with_values(lora), "job.toml")) == (
        "training.method",
        "training.lora.r",
        "training.lora.target_modules",
    )
    assert not {"layers", "lora"} & Job.read(with_values({}), "job.toml").training.model_dump().keys()


def test_text_that_is_neither_files_nor_the_builtin_one_is_explained_without_jargon() -> None:
    text = complaint({"data.text": "book.txt"})
    assert text.startswith("job.toml: data.text: ")
    assert "book.txt" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.path": "m"}, "give one of architecture"),
        ({"model.architecture": None}, "give one of architecture"),
        ({"model.vocab_size": 100}, "vocab_size comes from the tokenizer"),
        ({"model.architecture": None, "model.path": "m"}, "path brings its own config: remove hidden_size"),
    ],
)
def test_a_model_has_one_source(changes: dict[str, Any], said: str) -> None:
    assert complaint(changes).startswith("job.toml: model: ")
    assert said in complaint(changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.text": None}, "data: give either text = [...]"),
        ({"data.sources": [{"path": "a", "kind": "jsonl"}]}, "data: give either text = [...]"),
        ({"data.text": None, "data.sources": []}, "data.sources: "),
        ({"data.text": None, "data.sources": [{"path": "a"}]}, "data.sources.0.kind: this key is missing"),
        (
            {"data.text": None, "data.sources": [{"path": "a", "kind": "csv"}]},
            "'messages' or 'completions' (got 'csv')",
        ),
    ],
)
def test_documents_have_one_origin(changes: dict[str, Any], said: str) -> None:
    assert said in complaint(changes)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"column": "a", "template": "{a}"}, "give either column or template"),
        ({"kind": "text", "column": "a"}, "remove column and template"),
        ({"template": "no column"}, "names no column"),
        ({"template": "{a} {"}, "a brace that stands alone"),
        ({"template": "{}"}, "more or less than a name"),
        ({"template": "{a:>9}"}, "more or less than a name"),
        ({"weight": 0}, "greater than 0"),
        ({"weight": math.inf}, "weight"),
        ({"on_error": "ignore"}, "'stop' or 'skip'"),
        ({"colum": "a"}, "colum: unknown key; did you mean column?"),
    ],
)
def test_a_source_that_cannot_be_is_named_with_its_place(keys: dict[str, Any], said: str) -> None:
    text = complaint({"data.text": None, "data.sources": [{"path": "a", "kind": "jsonl"} | keys]})
    assert text.startswith("job.toml: data.sources.0")
    assert said in text


def test_relative_paths_are_seen_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    text = GOOD.replace('architecture = "llama"\nhidden_size = 64', 'path = "models/a"').replace('"bytes"', '"tok"')
    job_file(folder, text)
    monkeypatch.chdir(tmp_path)
    job = Job.load(Path("jobs") / "job.toml")
    assert job.model.path == folder / "models" / "a"
    assert job.data.text == [str(folder / "*.txt"), str(folder / "more" / "a.md")]
    assert job.data.tokenizer == str(folder / "tok")
    text = text.replace('text = ["*.txt", "more/a.md"]', 'sources = [{ path = "a/*.jsonl", kind = "jsonl" }]')
    job_file(folder, text)
    (source,) = Job.load(Path("jobs") / "job.toml").data.sources or ()
    assert source.path == str(folder / "a" / "*.jsonl")


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "examples").glob("*.toml")), ids=lambda one: one.name
)
def test_every_example_is_a_job(file: Path) -> None:
    job = Job.load(file)
    assert job.data.text or [source.kind for source in job.data.sources or ()] in (["parquet", "jsonl"], ["messages"])


def test_a_model_from_a_folder_keeps_its_own_tokenizer_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    own = GOOD.replace('architecture = "llama"\nhidden_size = 64', 'path = "models/a"')
    assert Job.load(job_file(tmp_path, own)).data.tokenizer == "bytes"
    job = Job.load(job_file(tmp_path, own.replace('tokenizer = "bytes"\n', "")))
    assert job.data.tokenizer_folder == job.model.path == tmp_path / "models" / "a"
    assert Job.load(job_file(tmp_path, GOOD.replace('tokenizer = "bytes"\n', ""))).data.tokenizer == "bytes"


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:512", "/abs/tok"])
def test_what_is_no_relative_path_stays(tmp_path: Path, tokenizer: str) -> None:
    text = GOOD.replace('"bytes"', f'"{tokenizer}"').replace('["*.txt", "more/a.md"]', '"cpython"')
    job = Job.load(job_file(tmp_path, text))
    assert job.data.tokenizer == tokenizer
    assert job.data.text == "cpython"


@pytest.mark.parametrize("data", [b"name = ", b"[model\n", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_what_is_no_toml_is_said_with_the_files_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(data)
    with pytest.raises(UserError, match="is not a TOML file") as caught:
        Job.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the job file .*none\.toml: No such file"):
        Job.load(tmp_path / "none.toml")
    with pytest.raises(UserError, match="cannot read the job file"):
        Job.load(tmp_path)
