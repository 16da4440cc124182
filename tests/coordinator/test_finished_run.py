"""A run that is over is not started again for nothing, and its owner hears how it goes on."""

from pathlib import Path

import pytest
import torch

from dtfm_coordinator.owner.owner_wishes import Amended, FinishWanted, Resumed, WishAnswer
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.serve.finished_run import finished_run
from dtfm_coordinator.serve.job_edits import remember
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.shard import describe_shard, encode_shard
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.job_file import Job, Model
from dtfm_protocol.job.metrics_file import MetricsFile
from tests.coordinator.peers import JOB, plan_of, row

FILE = Job(name=JOB.name, model=Model(architecture="llama"), data=Data(text=["/text/*.txt"]), training=JOB.training)


def trained(folder: Path, step: int) -> Path:
    """A state folder of a run that was trained up to `step`."""
    (folder / "job.json").write_text(JOB.model_dump_json())
    (folder / "plan.json").write_text(plan_of("a").model_dump_json())
    remember(FILE, folder)
    rows = MetricsFile(folder / "metrics.jsonl")
    for number in range(1, step + 1):
        rows.append(row(number))
    data = encode_shard({"weight/a": torch.zeros(2), "exp_avg/a": torch.zeros(2), "exp_avg_sq/a": torch.zeros(2)})
    file, tensors = describe_shard("stage-0.safetensors", data, (0, 1))
    with CheckpointStore(folder / "checkpoints").draft(step) as draft:
        draft.add(file.name, data)
        draft.commit(Manifest(job=JOB.name, config={}, step=step, plan_version=1, files=(file,), tensors=tensors))
    return folder


def edited(**training: object) -> Job:
    return FILE.model_copy(update={"training": FILE.training.model_copy(update=training)})


def test_a_run_that_is_done_is_said_to_be_with_how_it_goes_on(tmp_path: Path) -> None:
    said = finished_run(FILE, trained(tmp_path, 90))
    assert said.startswith("tiny is done: all 90 steps are trained. Nothing was started.")
    for command in ("set training.steps=180", "fork --from", "export"):
        assert f"dtfm-coordinator {command}" in said


def test_whoever_wants_more_steps_by_the_job_file_or_by_a_wish_gets_them(tmp_path: Path) -> None:
    folder = trained(tmp_path, 90)
    assert finished_run(edited(steps=100), folder) == ""
    assert "is done" in finished_run(edited(clip_norm=0.5), folder), "there is no step for which that would hold"
    WishFile(folder).add(Amended(at=1.0, values={"training.steps": 100}))
    assert finished_run(FILE, folder) == ""


@pytest.mark.parametrize("name", ["plan.json", "served.json", "checkpoints/step-00000090/manifest.json"])
def test_a_run_of_which_not_all_is_here_is_started(tmp_path: Path, name: str) -> None:
    (trained(tmp_path, 90) / name).unlink()
    assert finished_run(FILE, tmp_path) == ""


def test_a_run_that_is_not_done_is_started(tmp_path: Path) -> None:
    assert finished_run(FILE, trained(tmp_path, 89)) == ""


def test_another_job_is_started_so_that_the_coordinator_says_what_is_wrong(tmp_path: Path) -> None:
    folder = trained(tmp_path, 90)
    assert finished_run(FILE.model_copy(update={"data": Data(text=["/other/*.txt"])}), folder) == ""
    assert finished_run(edited(seed=9), folder) == ""


def test_a_run_that_its_owner_has_ended_stays_so_until_it_is_resumed(tmp_path: Path) -> None:
    folder = trained(tmp_path, 40)
    wishes = WishFile(folder)
    wish = wishes.add(FinishWanted(at=1.0))
    assert finished_run(FILE, folder) == "", "it has yet to be ended"
    wishes.add(WishAnswer(at=2.0, to=wish.number, done=True, text="ended"))
    assert "was ended after step 40 of 90" in (said := finished_run(FILE, folder))
    assert "dtfm-coordinator resume --state-dir" in said
    wishes.add(Resumed(at=3.0))
    assert finished_run(FILE, folder) == ""
