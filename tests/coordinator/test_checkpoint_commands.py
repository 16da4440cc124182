"""A run's checkpoints are listed, exported by step, and kept for good."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from dtfm_coordinator.main import app
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.job.metrics_file import MetricsFile
from tests.coordinator.peers import row
from tests.coordinator.test_export import MODELS, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a run with checkpoints of three steps."""
    folder = tmp_path_factory.mktemp("run")
    for step in (10, 20, 30):
        trained(folder, MODELS["llama tied"], step=step)
    rows = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, 21):
        rows.append(row(step))
    return folder


def said(folder: Path, *command: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkpoints", *command, "--state-dir", str(folder)])
    return result.exit_code, str(result.stdout) + str(result.stderr)


def listed(folder: Path) -> list[dict[str, object]]:
    code, text = said(folder, "list", "--json")
    assert code == 0
    return list(json.loads(text))


def test_checkpoints_are_listed_with_what_is_known_of_them(run: Path) -> None:
    found = listed(run)
    assert [(one["step"], one["loss"], one["for_good"]) for one in found] == [
        (10, 1.0, False),
        (20, 1.0, False),
        (30, None, False),
    ]
    for one in found:
        files = (run / "checkpoints" / f"step-{one['step']:08d}").glob("*.safetensors")
        assert one["bytes"] == sum(path.stat().st_size for path in files)
    code, text = said(run, "list")
    assert code == 0
    assert "until newer ones come" in text


def test_a_checkpoint_that_is_kept_for_good_outlives_newer_ones_until_that_is_undone(run: Path) -> None:
    store = CheckpointStore(run / "checkpoints")
    assert said(run, "keep", "10") == (0, "the checkpoint of step 10 is kept for good; `--undo` lets it go again\n")
    store.prune(2)
    store.prune(1)
    assert store.steps() == [10, 30]
    assert [one["for_good"] for one in listed(run)] == [True, False]
    assert said(run, "keep", "10", "--undo")[0] == 0
    store.prune(1)
    assert store.steps() == [30]


def test_a_checkpoint_is_exported_by_its_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    models = {step: trained(folder, MODELS["llama"], step=step) for step in (10, 20)}
    assert said(folder, "export", "10", str(tmp_path / "ten")) == (
        0,
        f"wrote the model after step 10 to {tmp_path / 'ten'}\n",
    )
    weights = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "ten").named_parameters())
    for name, value in models[10].named_parameters():
        assert weights[name].equal(value)
    assert not weights["lm_head.weight"].equal(models[20].lm_head.weight)


@pytest.mark.parametrize("command", [["keep", "7"], ["export", "7", "out"]])
def test_a_step_of_which_there_is_none_is_said(run: Path, command: list[str]) -> None:
    code, text = said(run, *command)
    assert (code, text.count("\n")) == (2, 1)
    assert "there is no checkpoint of step 7" in text


def test_a_damaged_one_is_shown_as_such_and_not_kept(tmp_path: Path) -> None:
    trained(tmp_path, MODELS["llama tied"], step=10)
    path = tmp_path / "checkpoints" / "step-00000010" / "stage-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "stage-1.safetensors has" in str(listed(tmp_path)[0]["fault"])
    assert said(tmp_path, "keep", "10")[0] == 2
    assert not CheckpointStore(tmp_path / "checkpoints").kept_for_good()


def test_before_the_first_one_that_is_said(tmp_path: Path) -> None:
    assert said(tmp_path, "list") == (0, "there is no checkpoint yet\n")
    assert said(tmp_path / "nowhere", "list")[0] == 2
