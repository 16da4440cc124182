"""The V100 benchmark: its pieces against closed forms, and two rows of its tables."""

import numpy as np
import pytest
from benchmarks.v100 import CELLS, SINGLE, Cell, predict
from benchmarks.v100_runs import (
    Machine,
    barrier_seconds,
    blocking_1f1b_seconds,
    pipelines,
    single_pipeline_seconds,
    step_seconds,
)

MACHINE = Machine(0.0072)


def test_a_row_of_each_table_is_predicted_within_a_sixth() -> None:
    assert single_pipeline_seconds(1.0, 5.0, 64, MACHINE) == pytest.approx(SINGLE[1.0, 5.0, 64], rel=1 / 6)
    cell: Cell = (3, "scheduled", 24, 1024)
    assert predict(MACHINE, [cell])[cell] == pytest.approx(CELLS[cell], rel=1 / 6)


@pytest.mark.parametrize("placement", ["scheduled", "random", "megatron"])
def test_deeper_models_and_larger_batches_take_longer(placement: str) -> None:
    small, deep, large = (
        step_seconds(4, placement, *size, MACHINE)  # type: ignore[arg-type]
        for size in ((24, 1024), (32, 1024), (24, 2048))
    )
    assert small < min(deep, large)
    assert sorted(pipelines(placement).ravel().tolist()) == list(range(64))  # type: ignore[arg-type]


def test_blocking_1f1b_adds_both_neighbours_exchanges_to_every_micro_batch() -> None:
    forwards = (1.0,) * 4
    assert blocking_1f1b_seconds(forwards, (0.0,) * 3, 6) == pytest.approx((6 + 3) * 4.0)
    few, many = (blocking_1f1b_seconds(forwards, (0.5, 0.25, 0.125), count) for count in (20, 30))
    assert many - few == pytest.approx(10 * (4.0 + 0.5 + 0.25))


def test_a_barrier_takes_a_round_trip_for_every_doubling() -> None:
    alpha = np.full((64, 64), 0.01)
    assert barrier_seconds(alpha, np.arange(64)) == pytest.approx(6 * 2 * 0.01)
