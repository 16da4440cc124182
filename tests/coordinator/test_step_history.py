"""What people see of a run's steps is of bounded size, and always the history that is on the disk."""

from pathlib import Path

import pytest

from dtfm_coordinator.records.growing_file import GrowingFile
from dtfm_coordinator.records.step_history import RECENT, StepHistory
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.step_metrics import StepMetrics


def row(step: int, plan: int = 1, **values: float) -> StepMetrics:
    figures = {"loss": 1.0 / step, "tokens": 8, "seconds": 0.5, "learning_rate": 1e-3, "grad_norm": 1.0}
    return StepMetrics.model_validate(
        {"step": step, "plan_version": plan, "predicted_seconds": 0.4, **figures, **values}
    )


def history_of(*rows: StepMetrics, points: int = 10) -> StepHistory:
    history = StepHistory(Path("/nowhere"), points)
    history.take(rows)
    return history


@pytest.mark.parametrize("steps", [1, 7, 10, 11, 1000, 1025])
def test_a_curve_of_many_steps_has_few_points_whose_sums_are_those_of_the_steps(steps: int) -> None:
    history = history_of(*(row(step) for step in range(1, steps + 1)))
    curve = history.curve
    assert len(curve) <= 10
    assert curve[-1].step == steps
    sizes = [b - a for a, b in zip([0, *(point.step for point in curve)], [p.step for p in curve], strict=False)]
    assert sum(size * point.loss for size, point in zip(sizes, curve, strict=True)) == pytest.approx(
        sum(1.0 / step for step in range(1, steps + 1))
    )
    assert set(sizes[:-1]) <= {history.stride}


def test_steps_of_which_nothing_was_learned_have_no_loss() -> None:
    rows = [row(step) for step in range(1, 10)]
    nothing = [row(step, loss=0.0, tokens=0) for step in (10, 11)]
    history = history_of(*rows, *nothing)
    assert history.loss == 1.0 / 9
    assert history.lately == history_of(*rows).lately
    assert min(point.loss for point in history.curve) == 1.0 / 9
    assert history.tokens == 72
    assert history_of(nothing[0]).loss is None


def test_the_newest_evaluation_is_always_there() -> None:
    history = history_of(*(row(step, eval_loss=float(step)) for step in range(1, 56)))
    assert len(history.evaluations) <= 11
    assert history.evaluations[-1] == (55, 55.0)
    assert history.evaluated is not None
    assert history.evaluated.step == 55


def test_the_pace_is_that_of_late() -> None:
    slow, fast = [row(step, seconds=9.0) for step in range(1, 20)], [row(step) for step in range(20, 20 + RECENT)]
    history = history_of(*slow, *fast)
    assert history.step_seconds == 0.5
    assert history.tokens_per_second == 16.0
    assert history_of().step_seconds is None
    assert history_of(row(1, seconds=11.0), row(2)).step_seconds == 0.5, "the first steps take longer"


def test_steps_that_are_lost_and_run_again_count_once(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    history = StepHistory(tmp_path / "metrics.jsonl")
    assert not history.take_up()
    for step in range(1, 6):
        file.append(row(step))
    assert history.take_up()
    assert (history.tokens, history.work[1].steps) == (40, 5)
    file.forget_after(3)
    file.append(row(4, plan=2))
    assert history.take_up()
    assert (history.tokens, history.work[1].steps, history.work[2].steps) == (32, 3, 1)
    assert not history.take_up()


def test_a_row_that_a_crash_has_torn_ends_what_counts_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(row(1).model_dump_json() + "\n" + '{"step": 2, "lo\n' + row(3).model_dump_json() + "\n")
    history = StepHistory(path)
    history.take_up()
    assert history.last == row(1)
    assert [one.step for one in MetricsFile(path).rows()] == [1]


def test_a_line_that_is_being_written_comes_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = GrowingFile(path)
    assert file.look() == (False, [])
    path.write_bytes(b"one\ntw")
    assert file.look() == (True, [b"one"])
    with path.open("ab") as appended:
        appended.write(b"o\n")
    assert file.look() == (False, [b"two"])
    path.unlink()
    assert file.look() == (True, [])


def test_a_long_file_is_read_in_turns(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(100)))
    file, found, turns = GrowingFile(path, bytes_a_look=50), list[bytes](), 0
    while lines := file.look()[1]:
        found += lines
        turns += 1
    assert found == [b"%d" % number for number in range(100)]
    assert turns > 5
