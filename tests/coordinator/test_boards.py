"""Boards get each step of a run once, and leave out those that are run again."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtfm_coordinator.serve.boards.board_feed import BoardFeed, BoardOptions
from dtfm_coordinator.serve.boards.opened_boards import open_boards
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.step_metrics import StepMetrics
from tests.coordinator.peers import row


class Noted:
    """A board that notes what it is told."""

    def __init__(self, *, fails: bool = False) -> None:
        self.said: list[str] = []
        self._fails = fails

    def write(self, row: StepMetrics) -> None:
        if self._fails:
            raise RuntimeError("the board is full")
        self.said.append(f"{row.step}")

    def go_back(self, step: int) -> None:
        self.said.append(f"back to {step}")

    def flush(self) -> None:
        self.said.append("flush")

    def close(self) -> None:
        self.said.append("close")


def test_each_step_is_written_once_and_steps_that_are_run_again_once_more(tmp_path: Path) -> None:
    rows, board = MetricsFile(tmp_path / "metrics.jsonl"), Noted()
    feed = BoardFeed(tmp_path, [board])
    feed.look()
    for step in (1, 2, 3):
        rows.append(row(step, 1))
    feed.look()
    feed.look()
    assert board.said == ["1", "2", "3", "flush"]
    rows.forget_after(1)
    rows.append(row(2, 2))
    feed.look()
    assert board.said[4:] == ["back to 1", "2", "flush"]
    rows.append(row(3, 2))
    feed.look()
    assert board.said[7:] == ["3", "flush"]


def test_a_board_that_fails_is_said_and_gets_no_more_and_the_others_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, boards = MetricsFile(tmp_path / "metrics.jsonl"), (Noted(fails=True), Noted())
    feed = BoardFeed(tmp_path, boards)
    for step in (1, 2):
        rows.append(row(step, 1))
        feed.look()
    assert boards[0].said == []
    assert boards[1].said == ["1", "flush", "2", "flush"]
    assert [record.getMessage() for record in caplog.records] == ["Noted is written no more: the board is full"]


def test_tensorboard_reads_the_curves_and_leaves_out_what_was_run_again(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    (board,) = open_boards(BoardOptions(tensorboard=tmp_path), tmp_path, "s", "demo")
    first = [row(step, 1).model_copy(update={"at": 1e9 + step}) for step in (1, 2, 3)]
    for one in first:
        board.write(one)
    board.go_back(1)
    board.write(first[1].model_copy(update={"loss": 0.25, "eval_loss": 0.125}))
    board.close()
    found = accumulator.EventAccumulator(str(tmp_path / "demo"))
    found.Reload()
    assert [(one.step, one.wall_time) for one in found.Scalars("train/loss")] == [(1, 1e9 + 1), (2, 1e9 + 2)]
    assert found.Scalars("train/loss")[1].value == 0.25
    assert [one.value for one in found.Scalars("eval/loss")] == [0.125]


def test_weights_and_biases_stays_on_this_machine_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[dict[str, Any]] = []
    logged: list[dict[str, Any]] = []
    run = SimpleNamespace(define_metric=lambda *_, **__: None, log=logged.append, finish=lambda: None)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=lambda **values: begun.append(values) or run, Settings=dict)
    )
    (board,) = open_boards(BoardOptions(wandb="volunteers"), tmp_path, "swarm-1", "demo")
    board.write(row(7, 1))
    board.close()
    assert begun == [
        {"project": "volunteers", "id": "swarm-1", "name": "demo", "dir": str(tmp_path), "mode": "offline",
         "resume": "allow", "settings": {"silent": True}}
    ]  # fmt: skip
    assert logged[0]["step"] == 7
    assert logged[0]["train/loss"] == row(7, 1).loss


def test_a_board_whose_package_is_missing_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtfm_coordinator.serve.boards.board_feed.find_spec", lambda _: None)
    BoardOptions().check()
    with pytest.raises(UserError, match="pip install wandb"):
        BoardOptions(wandb="x").check()
