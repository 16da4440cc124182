"""What the log says of steps: much at the beginning, little later, and always what an owner waits for."""

import logging
from pathlib import Path

import pytest

from dtfm_coordinator.records.metrics_recorder import MetricsRecorder
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from tests.coordinator.peers import plan_of, row

STEPS = 100_000


class Recorded:
    """A recorder whose clock goes on by a second with each step."""

    def __init__(self, folder: Path) -> None:
        self.now, self.plan = 1e6, plan_of("a")
        rows = MetricsFile(folder / "metrics.jsonl")
        self._recorder = MetricsRecorder(rows, self._plan, lambda: STEPS, lambda: self.now)

    def _plan(self) -> Plan:
        return self.plan

    def step(self, number: int, **values: float) -> None:
        self.now += 1.0
        found = row(number, self.plan.version).model_copy(update={"step": number, **values})
        self._recorder._show([found])


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def shown(caplog: pytest.LogCaptureFixture) -> list[int]:
    found = [record.getMessage().split()[1] for record in caplog.records if record.getMessage().startswith("Step ")]
    caplog.clear()
    return [int(number.replace(",", "")) for number in found]


@pytest.mark.parametrize(("level", "later"), [(logging.INFO, [30, 300]), (logging.DEBUG, [2, 2])])
def test_lines_about_steps_become_fewer_but_for_who_wants_them_all(
    recorded: Recorded, caplog: pytest.LogCaptureFixture, level: int, later: list[int]
) -> None:
    caplog.set_level(level, log.name)
    for number in range(1, 5000):
        recorded.step(number)
    found = shown(caplog)
    assert found[:3] == [1, 3, 5]
    assert [found[index] - found[index - 1] for index in (31 + 800 // later[0], -1)] == later


def test_an_evaluation_another_plan_and_the_last_step_are_always_said(
    recorded: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, log.name)
    for number in range(1, 5000):
        recorded.step(number)
    shown(caplog)
    recorded.step(5000, eval_loss=2.0)
    recorded.step(5001)
    recorded.plan = plan_of("a", version=2)
    recorded.step(5002)
    recorded.step(5003)
    recorded.step(STEPS)
    assert shown(caplog) == [5000, 5002, STEPS]
