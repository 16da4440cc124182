"""Who has contributed what follows from the plans and from the steps that still count."""

from pathlib import Path

import pytest

from dtfm_coordinator.records.member_records import NAME, MemberRecords, append_shares
from dtfm_coordinator.records.step_history import PlanWork
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.peers import row


def plan(version: int, *routes: str) -> Plan:
    """A plan of 4 layers whose stages are served as routes say, a letter a peer."""
    stages = ((0, 1), (1, 4)) if len(routes[0]) == 2 else ((0, 4),)
    return Plan(version=version, stages=stages, routes=tuple(map(tuple, routes)))


def rows(folder: Path) -> MetricsFile:
    return MetricsFile(folder / "metrics.jsonl")


def test_what_all_have_computed_is_every_token_in_every_layer(tmp_path: Path) -> None:
    append_shares(tmp_path, plan(1, "ab", "cb", "ab"), rows(tmp_path))
    append_shares(tmp_path, plan(2, "a", "d"), rows(tmp_path))
    found = MemberRecords(tmp_path).contributions({1: PlanWork(2, 300, 1.0), 2: PlanWork(5, 500, 2.0)})
    assert sum(one.layer_tokens for one in found.values()) == pytest.approx(4 * 800)
    assert {peer: one.tokens for peer, one in found.items()} == pytest.approx({"a": 450, "b": 300, "c": 100, "d": 250})
    assert found["a"].layer_tokens == pytest.approx(200 * 1 + 250 * 4)
    assert (found["a"].steps, found["a"].seconds) == (7, 3.0)
    assert (found["d"].steps, found["d"].seconds) == (5, 2.0)


def test_steps_that_no_longer_count_are_nobodys_contribution(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        append_shares(tmp_path, plan(version, "a", "b"), rows(tmp_path))
    records = MemberRecords(tmp_path)
    work = {1: PlanWork(10, 1000, 1.0), 2: PlanWork(1, 100, 0.1)}
    assert records.contributions(work)["a"].tokens == 550
    assert records.contributions(work | {1: PlanWork(4, 400, 0.4)})["a"].tokens == 250
    assert records.contributions({3: PlanWork(1, 100, 0.1)})["a"].tokens == 50
    assert records.contributions({}) == {}


def test_work_under_a_plan_that_nobody_wrote_down_is_nobodys(tmp_path: Path) -> None:
    assert MemberRecords(tmp_path).contributions({7: PlanWork(1, 100, 0.1)}) == {}


def test_a_row_that_a_crash_has_torn_spoils_no_other(tmp_path: Path) -> None:
    append_shares(tmp_path, plan(1, "a"), rows(tmp_path))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"plan": 2, "at"')
    append_shares(tmp_path, plan(3, "b"), rows(tmp_path))
    work = {version: PlanWork(1, 10, 0.1) for version in (1, 2, 3)}
    assert {peer: one.tokens for peer, one in MemberRecords(tmp_path).contributions(work).items()} == {"a": 10, "b": 10}


def test_long_records_lose_the_plans_under_which_no_step_was_made(tmp_path: Path) -> None:
    metrics = rows(tmp_path)
    metrics.append(row(1, plan_version=2))
    for version in range(1, 40):
        append_shares(tmp_path, plan(version, "a", "b"), metrics, most_bytes=1000)
    lines = (tmp_path / NAME).read_text().splitlines()
    assert len(lines) < 10
    found = MemberRecords(tmp_path).contributions({2: PlanWork(1, 8, 0.1), 39: PlanWork(1, 8, 0.1)})
    assert found["a"].tokens == 8


def test_without_room_on_the_disk_the_run_goes_on(tmp_path: Path) -> None:
    append_shares(tmp_path / "none", plan(1, "a"), rows(tmp_path))
    assert not (tmp_path / "none").exists()
