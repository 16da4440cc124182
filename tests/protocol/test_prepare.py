"""What a job's state dir is filled with, and when that is done anew."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dtfm_coordinator.allocator import job_demand
from dtfm_protocol.checkpoint.base_pieces import PieceFolder
from dtfm_protocol.data import prepare as preparing
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import KEYS
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.base_values import BaseValues
from dtfm_protocol.model.whole_model import build_whole

JOB = """
name = "tiny"
[model]
architecture = "llama"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
[data]
text = ["text.txt"]
[training]
steps = {steps}
global_batch = 2
micro_batch = 1
sequence_length = 8
learning_rate = 1e-3
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a job and its text."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 40)
    (tmp_path / "job.toml").write_text(JOB.format(steps=5))
    return tmp_path


def prepared(home: Path) -> tuple[ResolvedJob, list[str]]:
    """The job, and what was said of the work that it took."""
    said: list[str] = []
    return prepare(Job.load(home / "job.toml"), home / "state", said.append), said


def test_who_comes_back_reads_nothing_again(home: Path) -> None:
    job, work = prepared(home)
    assert work
    assert prepared(home) == (job, [])


def rewrite_text(home: Path) -> None:
    (home / "text.txt").write_text("that is the question: to be or not to be? " * 40)
    os.utime(home / "text.txt", (1, 1))


def lose(path: str) -> Callable[[Path], None]:
    def strike(home: Path) -> None:
        shutil.rmtree(home / "state" / path) if (home / "state" / path).is_dir() else (home / "state" / path).unlink()

    strike.__name__ = f"lose_{path}"
    return strike


def tear_a_shard(home: Path) -> None:
    shard = next((home / "state/tokens").iterdir())
    shard.write_bytes(shard.read_bytes()[:-2])


def rot_a_shard(home: Path) -> None:
    shard = next((home / "state/tokens").iterdir())
    shard.write_bytes(bytes(len(shard.read_bytes())))


def tear_the_tokenizer(home: Path) -> None:
    file = max((home / "state/tokenizer").iterdir(), key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[:-2])


def change_what_was_made(home: Path) -> None:
    path = home / "state/job.json"
    path.write_text(path.read_text() + " ")


@pytest.mark.parametrize(
    "strike",
    [
        lose("tokens"),
        lose("tokenizer"),
        lose("prepared"),
        tear_a_shard,
        rot_a_shard,
        tear_the_tokenizer,
        change_what_was_made,
    ],
)
def test_what_is_gone_or_damaged_is_made_again(home: Path, strike: Callable[[Path], None]) -> None:
    job, _ = prepared(home)
    strike(home)
    again, work = prepared(home)
    assert again == job
    assert work
    assert prepared(home) == (job, [])


def test_a_job_that_is_refused_costs_nothing(home: Path) -> None:
    prepared(home)
    (home / "job.toml").write_text(JOB.format(steps=5).replace("1e-3", "2e-3"))
    with pytest.raises(UserError, match="another job"):
        prepared(home)
    (home / "job.toml").write_text(JOB.format(steps=5))
    assert prepared(home)[1] == []


def test_another_job_is_refused_before_its_text_is_read(home: Path) -> None:
    prepared(home)
    rewrite_text(home)
    (home / "job.toml").write_text(JOB.format(steps=5).replace("1e-3", "2e-3"))
    said: list[str] = []
    with pytest.raises(UserError, match=r"another job \(training\.learning_rate differs\)"):
        prepare(Job.load(home / "job.toml"), home / "state", said.append)
    assert said == ["Checking the model."]


def test_more_steps_are_taken_up(home: Path) -> None:
    prepared(home)
    (home / "job.toml").write_text(JOB.format(steps=7))
    assert prepared(home)[0].training.steps == 7


def test_another_text_is_noticed(home: Path) -> None:
    prepared(home)
    rewrite_text(home)
    with pytest.raises(UserError, match="another job"):
        prepared(home)


def test_another_version_of_a_program_makes_it_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(home)
    monkeypatch.setattr(preparing, "version", lambda name: "99")
    assert prepared(home)[1]
    monkeypatch.setattr(preparing, "sources_digest", lambda *folders: "99")
    assert prepared(home)[1]


def with_weights(home: Path, method: str) -> ResolvedJob:
    """The job, prepared, as it begins with the weights of a model in a folder."""
    if not (home / "model").exists():
        whole = build_whole(prepared(home)[0].config, seed=1)
        whole.save_pretrained(home / "model")
        shutil.rmtree(home / "state")
    text = JOB.format(steps=5).replace('text = ["text.txt"]', 'text = ["text.txt"]\ntokenizer = "bytes"') + method
    model = text[text.index("[model]") : text.index("[data]")]
    (home / "job.toml").write_text(text.replace(model, '[model]\npath = "model"\n'))
    return prepared(home)[0]


def test_pretrained_weights_become_pieces_named_by_their_hashes_and_no_checkpoint(home: Path) -> None:
    job, pieces = with_weights(home, ""), home / "state" / "base"
    assert [piece.layers for piece in job.base] == [(0, 0), (0, 1), (1, 2), (2, 2)]
    assert "base" in job.needs
    for piece in job.base:
        data = (pieces / f"{piece.sha256}.safetensors").read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (piece.sha256, piece.bytes)
    assert {path.stem for path in pieces.iterdir()} == {piece.sha256 for piece in job.base}
    assert not (home / "state" / "checkpoints").exists()
    for name, value in build_whole(job.config, seed=1).named_parameters():
        assert torch.equal(BaseValues(job, PieceFolder(pieces)).value(name, tuple(value.shape)).decoded(), value)
    assert prepared(home) == (job, [])


def test_a_piece_that_is_gone_or_damaged_is_made_again(home: Path) -> None:
    job, pieces = with_weights(home, ""), home / "state" / "base"
    (pieces / f"{job.base[0].sha256}.safetensors").unlink()
    damaged = pieces / f"{job.base[1].sha256}.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert prepared(home)[0] == job
    assert all(PieceFolder(pieces).has(piece.sha256) for piece in job.base)


def test_weights_that_have_changed_since_the_run_began_are_refused_in_one_line(home: Path) -> None:
    job = with_weights(home, "")
    build_whole(job.config, seed=2).save_pretrained(home / "model")
    with pytest.raises(UserError, match="are not those that the run in") as caught:
        prepared(home)
    assert "\n" not in str(caught.value)
    assert all(PieceFolder(home / "state" / "base").has(piece.sha256) for piece in job.base)
    build_whole(job.config, seed=1).save_pretrained(home / "model")
    assert prepared(home)[0] == job


def test_layers_that_the_model_does_not_have_are_refused_before_the_text_is_read(home: Path) -> None:
    (home / "job.toml").write_text(JOB.format(steps=5) + 'method = "frozen-layers"\nlayers = [1, 3]\n')
    said: list[str] = []
    with pytest.raises(UserError, match=r"training\.layers: \[1, 3\], but the model has 2 layers"):
        prepare(Job.load(home / "job.toml"), home / "state", said.append)
    assert said == ["Checking the model."]


def test_a_change_that_was_broken_off_leaves_nothing_that_counts_as_made(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(home)
    (home / "job.toml").write_text(JOB.format(steps=7))

    def fail(*_: object) -> None:
        raise UserError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(preparing, "save", fail)
        with pytest.raises(UserError, match="full"):
            prepared(home)
    (home / "job.toml").write_text(JOB.format(steps=5))
    assert prepared(home)[1]


def test_what_lies_beside_a_tokenizer_is_no_reason_to_fail(home: Path) -> None:
    prepared(home)
    shutil.copytree(home / "state/tokenizer", home / "mine")
    (home / "mine/away").symlink_to(home / "nowhere")
    (home / "mine/notes").mkdir()
    (home / "job.toml").write_text(JOB.format(steps=5).replace("[data]", '[data]\ntokenizer = "mine"'))
    assert prepared(home)[1]
    assert prepared(home)[1] == []
    (home / "state/tokenizer/templates").mkdir()
    (home / "state/tokenizer/templates/tools").write_text("{{ tools }}")
    assert prepared(home)[1]
    assert prepared(home)[1] == []
    (home / "mine/tokenizer_config.json").touch()
    assert prepared(home)[1]


def with_sources(home: Path, *entries: str, more: str = "") -> None:
    text = JOB.format(steps=5).replace('text = ["text.txt"]', f"sources = [{', '.join(entries)}]")
    (home / "job.toml").write_text(text + more)


def test_a_job_of_sources_is_the_job_of_the_same_text_files_and_names_no_path(home: Path) -> None:
    of_files, _ = prepared(home)
    (home / "secret.jsonl").write_text(json.dumps({"body": (home / "text.txt").read_text()}))
    with_sources(home, '{ path = "secret.jsonl", kind = "jsonl", column = "body" }')
    job, said = prepared(home)
    assert job == of_files
    assert "Reading the text." in said
    assert prepared(home) == (job, [])
    for file in (file for file in (home / "state").rglob("*") if file.is_file()):
        assert b"secret" not in file.read_bytes()


def test_rows_that_were_passed_over_are_said(home: Path) -> None:
    (home / "a.jsonl").write_text(json.dumps({"text": "to be or not to be " * 40}) + "\n{\n")
    with_sources(home, '{ path = "a.jsonl", kind = "jsonl", on_error = "skip" }')
    (said,) = [line for line in prepared(home)[1] if line.startswith("Passed over")]
    assert f"1 row of the text: {home}/a.jsonl, line 2, is not JSON" in said


def test_what_is_held_out_is_of_documents_that_are_not_repeated(home: Path) -> None:
    (home / "more.txt").write_text("a few words more, " * 9)
    held_out = "[evaluation]\nevery = 1\nsequences = {}\n"
    twice, once = (
        '{{ path = "{}", kind = "text", weight = {} }}'.format(*one) for one in (("text.txt", 2), ("more.txt", 1))
    )
    with_sources(home, twice, once, more=held_out.format(20))
    prepared(home)
    shutil.rmtree(home / "state")
    with_sources(home, twice, once, more=held_out.format(21))
    with pytest.raises(
        UserError, match="169 tokens are held out, but only 163 are of sources whose weight is 1 or less"
    ):
        prepared(home)
    with_sources(home, twice, more=held_out.format(1))
    with pytest.raises(UserError, match="every weight is above 1"):
        prepared(home)


def test_a_model_from_a_folder_without_a_tokenizer_is_refused_in_one_line(home: Path) -> None:
    first, _ = prepared(home)
    (home / "model").mkdir()
    (home / "model/config.json").write_text(json.dumps(first.config))
    model = JOB.format(steps=5).partition("[model]")[0] + '[model]\npath = "model"\n'
    (home / "job.toml").write_text(model + "[data]" + JOB.format(steps=5).partition("[data]")[2])
    shutil.move(home / "state", home / "before")
    with pytest.raises(UserError, match="has no tokenizer: put the files") as caught:
        prepared(home)
    assert "\n" not in str(caught.value)
    shutil.copytree(home / "before/tokenizer", home / "model", dirs_exist_ok=True)
    job, _ = prepared(home)
    assert (job.corpus, job.config["vocab_size"]) == (first.corpus, 257)


def test_sizes_are_found_out_once_for_a_state_dir(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = prepared(home)
    found = job_demand.kept_requirements(job.config, job.training, home)
    assert found == job_demand.requirements(job.config, job.training)
    other = job.training.model_copy(update={"sequence_length": 4})
    assert job_demand.kept_requirements(job.config, other, home) != found
    (home / "demand.json").write_text('{"stamp": 1')
    assert job_demand.kept_requirements(job.config, job.training, home) == found
    monkeypatch.setattr(job_demand, "requirements", None)
    assert job_demand.kept_requirements(job.config, job.training, home) == found


@pytest.mark.process
def test_a_coordinator_that_comes_back_imports_no_transformers(home: Path) -> None:
    """That takes longer than all else that it does at its start."""
    program = """
import sys
from pathlib import Path
from dtfm_coordinator.serve import service
from dtfm_coordinator.allocator.job_demand import kept_requirements
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.data.prepare import prepare
home = Path(sys.argv[1])
job = prepare(Job.load(home / "job.toml"), home / "state", print)
kept_requirements(job.config, job.training, home / "state")
print("transformers" in sys.modules)
"""
    job, _ = prepared(home)
    job_demand.kept_requirements(job.config, job.training, home / "state")
    again = subprocess.run([sys.executable, "-c", program, str(home)], capture_output=True, text=True, check=True)
    assert again.stdout.split()[-1] == "False"


def test_a_run_that_has_begun_keeps_its_job_and_what_may_change_while_it_trains_is_no_other_job(home: Path) -> None:
    """Peers were given that job: with another one they would have to be started anew."""
    first, _ = prepared(home)
    file = home / "job.toml"
    file.write_text(JOB.format(steps=7).replace("1e-3", "2e-3"))
    job = Job.load(file)
    said: list[str] = []
    assert prepare(job, home / "state", said.append, alterable=KEYS, keeps_first=True) == first
    assert said  # the folder was prepared by a program for which other keys may change
    said.clear()
    for steps in (7, 8, 9):  # nodes wait for a coordinator that returns: no text is read again
        file.write_text(JOB.format(steps=steps))
        assert prepare(Job.load(file), home / "state", said.append, alterable=KEYS, keeps_first=True) == first
    assert said == []
    file.write_text(JOB.format(steps=5).replace("1e-3", "2e-3") + "seed = 7\n")
    with pytest.raises(UserError, match=r"training\.seed differs.*fork"):
        prepare(Job.load(file), home / "state", print, alterable=KEYS, keeps_first=True)
