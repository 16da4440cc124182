"""Late actions of paced programs: what counts as late, and what is kept for whoever has paced them."""

from pathlib import Path

import pytest

from dtfm_protocol.process.late_actions import FOLDER, TOLERANCE, LateActionCount, LateActions, kept_in


def test_an_action_is_late_by_more_than_a_clocks_tick() -> None:
    count = LateActionCount()
    for excess in (-0.5, 0.0, TOLERANCE / 2, 0.25, 0.125):
        count.note(excess)
    assert count.total == LateActions(actions=5, late=2, most=0.25)
    assert count.total.text == "pace missed: 2 of 5 actions were late, by 250 ms at most"
    assert LateActions(1_000).text == "pace kept: none of 1,000 actions was late"


def test_what_all_programs_have_counted_is_summed(tmp_path: Path) -> None:
    now = [0.0]
    count = LateActionCount(tmp_path, clock=lambda: now[0])
    count.note(0.5)
    assert kept_in(tmp_path) == LateActions()
    now[0] = 10.0
    count.note(0.0)
    assert kept_in(tmp_path) == LateActions(2, 1, 0.5)
    count.note(0.75)
    count.write()
    count.write()  # nothing is counted twice
    (tmp_path / "other.jsonl").write_text('{"actions": 7, "late": 0, "most": 0.0}\n')
    assert kept_in(tmp_path) == LateActions(10, 2, 0.75)


def test_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    count = LateActionCount.of_environment()
    count.note(0.5)
    count.write()
    assert kept_in(tmp_path).late == 1
    monkeypatch.delenv(FOLDER)
    LateActionCount.of_environment().write()
