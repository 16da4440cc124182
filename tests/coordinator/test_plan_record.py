"""What a coordinator keeps of changes of plan, and how it knows a folder that was put back to an earlier copy."""

import shutil
from pathlib import Path

import pytest

from dtfm_coordinator.plan_change import plan_record
from dtfm_coordinator.plan_change.plan_change_events import Announced, Durable
from dtfm_coordinator.plan_change.plan_electors import Electorate
from dtfm_coordinator.plan_change.plan_record import COPY_SECONDS, FILE, VERSIONS_AHEAD, PlanRecord
from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.plan.plan import Plan

LEARNT = Plan(version=6, stages=((0, 4),), routes=(("m",), ("n",)), author="another")
KEPT = Durable(
    Announced(called=7, in_force=5, started=5),
    promised=frozenset({("a", 7)}),
    doors=(("a", (("192.0.2.1", 1),)),),
    doors_of=5,
    learnt=Electorate.of(LEARNT),
)


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written now says that it was written a while ago."""
    now = plan_record.time.time
    monkeypatch.setattr(plan_record.time, "time", lambda: now() - 2 * COPY_SECONDS)


def test_what_is_kept_is_found_again_also_hours_later(tmp_path: Path) -> None:
    PlanRecord.keeping(KEPT, LEARNT).save(tmp_path)
    record = PlanRecord.of(tmp_path)
    assert (record.durable, record.learnt, record.is_put_back) == (KEPT, LEARNT, False)


@pytest.mark.usefixtures("long_ago")
def test_a_copy_of_an_earlier_folder_forgets_plans_whatever_times_its_files_have(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    PlanRecord.keeping(KEPT, LEARNT).save(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # with the times of its files
    record = PlanRecord.of(tmp_path / "copy")
    assert record.is_put_back
    assert record.durable == KEPT._replace(forgotten=7 + VERSIONS_AHEAD)


@pytest.mark.usefixtures("long_ago")
def test_a_copy_of_a_copy_forgets_what_was_made_of_the_first(tmp_path: Path) -> None:
    PlanRecord.keeping(KEPT._replace(forgotten=100), LEARNT).save(tmp_path)
    assert PlanRecord.of(tmp_path).forgotten == 100 + VERSIONS_AHEAD
    PlanRecord.keeping(KEPT._replace(forgotten=MOST_UINT32)).save(tmp_path)
    assert PlanRecord.of(tmp_path).forgotten < MOST_UINT32


def test_once_a_plan_was_called_for_a_folder_is_no_copy_any_more(tmp_path: Path) -> None:
    called = KEPT._replace(epoch=Announced(called=9, in_force=5), forgotten=8)
    PlanRecord.keeping(called, LEARNT).save(tmp_path)
    record = PlanRecord.of(tmp_path)
    assert (record.forgotten, record.is_put_back) == (8, False)


def test_a_record_of_an_earlier_version_says_nothing_of_when_it_was_written(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"epoch": {"called": 7}}')
    assert PlanRecord.of(tmp_path).durable == Durable(Announced(called=7))
