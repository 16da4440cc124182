"""A new job that begins with the weights of a run."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from dtfm_coordinator.main import app
from dtfm_coordinator.serve.job_edits import remember
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data, DataSource
from dtfm_protocol.job.job_file import EvaluationTable, Job, Sharing, Training
from dtfm_protocol.model.lora import adapter_shapes
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.peers import JOB
from tests.coordinator.test_export import LENGTH, MODELS, begin, job_of, keep, trained

AMENDED = {"number": 1, "from_step": 40, "values": {"training.steps": 200, "training.clip_norm": 0.5}}


def said(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["fork", *map(str, arguments)])
    return result.exit_code, str(result.stdout), str(result.stderr)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was changed at step 40, with checkpoints of steps 20 and 50."""
    folder = tmp_path / "run"
    for step in (20, 50):
        trained(folder, MODELS["llama"], step=step)
    training = Training(steps=90, global_batch=8, micro_batch=2, sequence_length=LENGTH, learning_rate=1e-3)
    job = JOB.model_copy(update={"training": training, "name": "mine"})
    (folder / "job.json").write_text(job.model_dump_json())
    plan = Plan.model_validate({"stages": [[0, 2]], "routes": [["a"]] * 4, "amendments": [AMENDED]})
    (folder / "plan.json").write_text(plan.model_dump_json())
    data = Data(text=[str(tmp_path / "text.txt")])
    sharing = Sharing(model="members", license="apache-2.0")
    remember(Job(name="mine", model=MODELS["llama"], data=data, training=training, sharing=sharing), folder)
    return folder


def test_the_new_job_has_the_weights_and_the_settings_of_that_step(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    code, out, _ = said(file, "--from", run)
    assert (code, "after step 50" in out) == (0, True)
    job = Job.load(file)
    assert job.name == "mine-fork"
    assert (job.training.steps, job.training.clip_norm, job.training.schedule_end) == (200, 0.5, None)
    assert job.data.text == [str(tmp_path / "text.txt")]
    assert 'text = ["text.txt"]' in file.read_text()
    assert job.sharing == Sharing(model="members", license="apache-2.0")
    assert job.evaluation == EvaluationTable()
    assert job.model.path == tmp_path / "new-model"
    assert job.data.tokenizer_folder == tmp_path / "new-model"
    begun = AutoModelForCausalLM.from_pretrained(job.model.path)
    whole = trained(tmp_path / "same", MODELS["llama"], step=50)
    for key, value in whole.state_dict().items():
        assert torch.equal(begun.state_dict()[key], value)
    assert said(tmp_path / "older.toml", "--from", f"{run}@20")[0] == 0
    assert Job.load(tmp_path / "older.toml").training.steps == 90


def test_a_fork_of_a_job_that_trains_adapters_begins_with_the_model_that_they_make(tmp_path: Path) -> None:
    state, file = tmp_path / "run", tmp_path / "new.toml"
    whole = trained(state, MODELS["llama"], step=50)
    config = CheckpointStore(state / "checkpoints").whole(50).config
    lora = {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj"]}
    job = begin(state, job_of(state, config, pretrained=True, method="lora", lora=lora), whole)
    adapters = adapter_shapes(config, job.training.lora).items()
    keep(state, config, {name: torch.full(shape, 0.1) for name, shape in adapters})
    remember(Job(name="job", model=MODELS["llama"], data=Data(text="cpython"), training=job.training), state)
    assert said(file, "--from", state)[0] == 0
    forked = Job.load(file)
    assert (forked.training.method, forked.training.lora) == ("lora", job.training.lora)
    assert "\n[lora]\nr = 8\n" in file.read_text()
    begun = dict(AutoModelForCausalLM.from_pretrained(forked.model.path).named_parameters())
    for name, value in whole.named_parameters():
        more = 16 / 8 * 8 * 0.1 * 0.1 if ".q_proj." in name else 0.0
        assert torch.allclose(begun[name], value + more, atol=1e-6), name


def test_sources_are_taken_over(run: Path, tmp_path: Path) -> None:
    sources = [
        DataSource(
            path=str(tmp_path / "chat/*.jsonl"), kind="jsonl", template='{a} "{b}"\n', weight=0.5, on_error="skip"
        ),
        DataSource(path="/elsewhere/all.parquet", kind="parquet"),
        DataSource(path="org/set", kind="messages", format="hub", split="test"),
    ]
    training = Training(steps=90, global_batch=8, micro_batch=2, sequence_length=LENGTH, learning_rate=1e-3)
    remember(Job(name="mine", model=MODELS["llama"], data=Data(sources=sources, packing=True), training=training), run)
    file = tmp_path / "new.toml"
    assert said(file, "--from", run)[0] == 0
    job = Job.load(file)
    assert job.data.sources == sources
    assert job.data.packing
    assert job.data.tokenizer_folder == tmp_path / "new-model"
    assert 'path = "chat/*.jsonl"' in file.read_text()


@pytest.mark.parametrize(
    ("source", "words"),
    [("run@30", "no checkpoint of step 30"), ("run@now", "the step of a checkpoint"), ("gone", "holds no run")],
)
def test_what_cannot_be_forked_is_said_in_one_line_and_no_file_is_written(
    run: Path, tmp_path: Path, source: str, words: str
) -> None:
    code, _, error = said(tmp_path / "new.toml", "--from", run.parent / source)
    assert (code, error.count("\n")) == (2, 1)
    assert words in error
    assert not list(tmp_path.glob("new*"))


def test_a_job_file_that_is_there_is_not_written_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text("mine")
    assert "is there already" in said(tmp_path / "new.toml", "--from", run)[2]
    with pytest.raises(UserError):
        Job.load(tmp_path / "new.toml")
