"""`metrics.jsonl`: each step once, in order, whatever a crash left behind."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.step_metrics import StepMetrics


def row(step: int, loss: float = 1.0) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=loss,
        tokens=64,
        seconds=0.5,
        plan_version=1,
        learning_rate=1e-3,
        grad_norm=2.0,
        predicted_seconds=None,
    )


def steps(path: Path) -> list[int]:
    """Read as anyone would: every line is JSON."""
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def filled(path: Path, count: int) -> MetricsFile:
    rows = MetricsFile(path)
    for step in range(1, count + 1):
        assert rows.append(row(step))
    return rows


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = filled(path, 3)
    assert rows.rows() == [row(1), row(2), row(3)]
    assert MetricsFile(path).last == 3
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0]) == row(1).model_dump()


def test_an_empty_history_has_no_last_step(tmp_path: Path) -> None:
    rows = MetricsFile(tmp_path / "metrics.jsonl")
    assert (rows.last, rows.rows()) == (0, [])
    rows.forget_after(0)
    assert not (tmp_path / "metrics.jsonl").exists()


@given(order=st.lists(st.integers(1, 6), max_size=25))
@settings(max_examples=60, deadline=None)
def test_whatever_comes_each_step_is_there_once_and_in_order(
    order: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    rows, last = MetricsFile(path), 0
    for step in order:
        taken = rows.append(row(step))
        assert taken == (step == last + 1)
        last += taken
    assert MetricsFile(path).last == rows.last == last
    assert (steps(path) if last else []) == list(range(1, last + 1))


@pytest.mark.parametrize("back", [0, 1, 2, 3, 9])
def test_forgetting_drops_what_a_lost_state_had_written(tmp_path: Path, back: int) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = filled(path, 3)
    rows.forget_after(back)
    kept = min(back, 3)
    assert rows.last == kept
    assert steps(path) == list(range(1, kept + 1))
    assert rows.append(row(kept + 1, loss=9.0))
    assert MetricsFile(path).rows()[-1] == row(kept + 1, loss=9.0)


@pytest.mark.parametrize(
    "tail", [b'{"step": 3, "lo', b"\x00" * 40, b'{"step": 3, "loss": NaN}\n', b"\n", b'{"step": 5}\n', b"\xff\xfe\n"]
)
def test_after_a_torn_last_row_the_next_one_is_still_read(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    filled(path, 2)
    with path.open("ab") as file:
        file.write(tail)
    rows = MetricsFile(path)
    assert rows.last == 2
    assert rows.append(row(3))
    assert MetricsFile(path).last == 3
    assert steps(path) == [1, 2, 3]


def test_a_row_whose_line_break_was_torn_off_is_not_joined_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    filled(path, 2)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    rows = MetricsFile(path)
    assert rows.append(row(rows.last + 1))
    assert steps(path) == list(range(1, rows.last + 1))


@pytest.mark.parametrize("tail", [b"", b'{"step": 3, "lo', b'{"step": 5}\n'])
def test_who_only_reads_changes_nothing(tmp_path: Path, tail: bytes) -> None:
    """`status` reads beside a coordinator whose next row may be half-written at that moment."""
    path = tmp_path / "metrics.jsonl"
    filled(path, 2)
    with path.open("ab") as file:
        file.write(tail)
    data, inode = path.read_bytes(), path.stat().st_ino
    assert [found.step for found in MetricsFile(path).rows()] == [1, 2]
    assert (path.read_bytes(), path.stat().st_ino) == (data, inode)


def test_rows_out_of_order_end_the_history(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row(step).model_dump()) + "\n" for step in (1, 2, 4, 3, 5)), encoding="utf-8")
    rows = MetricsFile(path)
    assert [found.step for found in rows.rows()] == [1, 2, 4]
    rows.forget_after(2)
    assert steps(path) == [1, 2]


def test_steps_of_which_nobody_is_left_who_knows_may_lack_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = filled(path, 2)
    assert not rows.append(row(5))
    assert not rows.append(row(6), after=4)
    assert rows.append(row(5), after=4)
    assert rows.append(row(6), after=4)
    assert not rows.append(row(4), after=4)
    assert steps(path) == [1, 2, 5, 6]
    assert [found.step for found in MetricsFile(path).rows()] == [1, 2, 5, 6]
    rows.forget_after(5)
    assert steps(path) == [1, 2, 5]


def test_a_history_that_needs_no_change_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = filled(path, 3)
    before = path.stat().st_ino
    rows.forget_after(3)
    assert path.stat().st_ino == before


def test_a_disk_that_takes_nothing_is_a_user_error(tmp_path: Path) -> None:
    rows = MetricsFile(tmp_path / "gone" / "metrics.jsonl")
    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl: No such file"):
        rows.append(row(1))
    assert rows.last == 0
