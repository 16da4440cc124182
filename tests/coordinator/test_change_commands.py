"""Changing a job by command, and by editing its file, on the state folder of a coordinator that has served."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtfm_coordinator.main import app
from dtfm_coordinator.owner.owner_wishes import Amended, Paused
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.serve.job_edits import remember, take_up_edits
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.job_file import Job, Model
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.state_dir import locked
from tests.coordinator.peers import JOB, row
from tests.harness.daemon import BIN
from tests.harness.terminal import Terminal

STEPS = 20
"""Steps that are done."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "invite").write_text("an invite\n")
    (tmp_path / "job.json").write_text(JOB.model_dump_json())
    rows = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(1, STEPS + 1):
        rows.append(row(step))
    return tmp_path


def wishes(folder: Path) -> list[Amended]:
    return [one for one in WishFile(folder).wishes.unanswered.values() if isinstance(one, Amended)]


def said(folder: Path, *changes: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["set", *changes, "--state-dir", str(folder)])
    return result.exit_code, str(result.stdout), str(result.stderr)


def test_set_says_what_changes_and_from_when_and_asks_for_it(folder: Path) -> None:
    code, out, _ = said(folder, "training.steps=200", "plan.wire=bf16", "plan.stages = auto")
    assert code == 0
    assert out.splitlines() == [
        "training.steps 90 -> 200 from step 21 or a little later",
        "plan.wire.activations fp32 -> bf16 from step 21 or a little later",
        "plan.wire.gradients fp32 -> bf16 from step 21 or a little later",
        f"no coordinator runs on {folder}: it holds when the run is served again",
    ]
    (wish,) = wishes(folder)
    assert wish.from_step is None
    assert wish.values["training.steps"] == 200
    code, out, _ = said(
        folder, "plan.strict=true", "training.learning_rate=2e-3", "--at", "150"
    )  # a step that the wish before brings
    assert code == 0
    assert out.splitlines()[:2] == [
        "plan.strict false -> true from step 150",
        "training.learning_rate 0.001 -> 0.002 from step 150",
    ]
    assert wishes(folder)[1].values == {"plan.strict": True, "training.learning_rate": 2e-3}


def test_what_is_set_in_a_paused_run_is_not_waited_for(folder: Path) -> None:
    WishFile(folder).add(Paused(at=5.0))
    with locked(folder):  # as by a coordinator that runs
        code, out, error = said(folder, "training.clip_norm=0.5")
    assert (code, error) == (0, "")
    assert out.splitlines()[1] == "the run is paused: it holds when the run goes on"
    assert len(wishes(folder)) == 1


def test_a_rate_that_jumps_far_up_is_taken_from_a_script_only_where_it_says_yes(folder: Path) -> None:
    code, out, error = said(folder, "training.learning_rate=5")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "jumps to 5,000 times" in error
    assert "--yes" in error
    assert wishes(folder) == []
    assert said(folder, "training.learning_rate=0.009")[0] == 0
    assert said(folder, "training.learning_rate=5", "--yes")[0] == 0
    assert [wish.values for wish in wishes(folder)] == [
        {"training.learning_rate": 0.009},
        {"training.learning_rate": 5},
    ]


@pytest.mark.process
def test_a_rate_that_jumps_far_up_is_asked_about_at_a_terminal(folder: Path) -> None:
    command = [str(BIN / "dtfm-coordinator"), "set", "training.learning_rate=5", "--state-dir", str(folder)]
    with Terminal.running(command, dict(os.environ)) as terminal:
        terminal.until("Change it all the same? [y/N]")
        terminal.type("n\n")
        assert terminal.exit_code() == 1
        assert "Nothing was changed." in terminal.shown
    assert wishes(folder) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["training.steps"], "write KEY=VALUE"),
        (["steps=9"], "did you mean training.steps"),
        (["training.seed=9"], "fork"),
        (["model.hidden_size=9"], "fork"),
        (["training.steps=19"], "step 20 is done already"),
        (["training.steps=many"], "training.steps"),
        (["training.clip_norm=2", "--at", "20"], "step 20 is done already"),
        (["training.clip_norm=2", "--at", "92"], "ends with step 90"),
        (["training.global_batch=9"], "multiple of micro_batch"),
        (["training.global_batch=800"], "tokens"),
        (["plan.replicas=5"], "4 micro-batches"),
        (["evaluation.every=5"], "nothing is left to evaluate on"),
        (["training.clip_norm=1.0"], "holds already"),
    ],
)
def test_what_cannot_be_set_is_said_in_one_line_and_nothing_is_asked_for(
    folder: Path, changes: list[str], words: str
) -> None:
    code, out, error = said(folder, *changes)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert words in error
    assert wishes(folder) == []


def test_set_on_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    code, _, error = said(tmp_path, "training.steps=9")
    assert (code, error.count("\n")) == (2, 1)
    assert "holds no run" in error


def edited(**training: object) -> Job:
    return Job(
        name=JOB.name,
        model=Model(architecture="llama"),
        data=Data(text=["/text/*.txt"]),
        training=JOB.training.model_validate(JOB.training.model_dump() | training),
    )


def test_what_is_edited_in_the_job_file_is_asked_for_and_what_is_not_stays_as_it_was_set(folder: Path) -> None:
    remember(edited(), folder)
    assert said(folder, "training.learning_rate=2e-3")[0] == 0
    take_up_edits(edited(), folder)
    assert len(wishes(folder)) == 1  # the file was not edited, and does not undo what was set
    take_up_edits(edited(steps=100, clip_norm=0.5), folder)
    assert wishes(folder)[1].values == {"training.steps": 100, "training.clip_norm": 0.5}
    take_up_edits(edited(steps=100, clip_norm=0.5), folder)
    take_up_edits(edited(steps=100, clip_norm=0.5, learning_rate=2e-3), folder)  # that is so already
    assert len(wishes(folder)) == 2


def test_a_run_that_was_served_before_edits_were_kept_is_compared_with_its_beginning(folder: Path) -> None:
    take_up_edits(edited(steps=100), folder)
    assert [wish.values for wish in wishes(folder)] == [{"training.steps": 100}]


def test_an_edit_that_cannot_be_is_refused_and_may_be_taken_back(folder: Path) -> None:
    remember(edited(), folder)
    with pytest.raises(UserError, match=r"job file was changed in a way.*step 20 is done"):
        take_up_edits(edited(steps=10), folder)
    assert wishes(folder) == []
    take_up_edits(edited(), folder)
    assert json.loads((folder / "served.json").read_text())["training"]["steps"] == 90
