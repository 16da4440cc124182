"""A run becomes one HTML file that needs nothing else, and in which nothing that others say is markup."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docs.generate.full_overview import MEMBER, OVERVIEW
from typer.testing import CliRunner

from dtfm_coordinator.main import app
from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import Invited, Redeemed
from dtfm_coordinator.owner.owner_wishes import Paused, WishAnswer
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.records.event_log import PlanEvent, append
from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.swarm.overview.overview import Health
from dtfm_coordinator.tools.report.curve_chart import Curve, chart, thinned, ticks
from dtfm_coordinator.tools.report.run_facts import RunFacts
from dtfm_protocol.job.job_file import Planning
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.process.state_dir import locked
from tests.coordinator.peers import JOB, plan_of, row

EVIL = '<script>alert("1")</script>'


class Tags(HTMLParser):
    """The tags of a document, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.links: list[str] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.said += data


def written(folder: Path, steps: int = 30) -> Path:
    """A state folder as a run leaves it, in which others have said what could do harm."""
    (folder / "job.json").write_text(JOB.model_dump_json())
    rows = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        update = {"loss": 3.0 - step / 20, "predicted_seconds": 0.12, "eval_loss": 2.0 if step % 10 == 0 else None}
        rows.append(row(step, 1 + step // 20).model_copy(update=update))
    for number, why in ((1, "the first plan"), (2, f"{'a' * 6} came; {EVIL} left")):
        append(
            folder,
            PlanEvent(
                plan=number, why=why, called_at=1.0, in_force_at=2.0, started_at=3.0, step=20 * (number - 1),
                repeated=number - 1, source="start",
            ),
        )  # fmt: skip
    (folder / "plan.json").write_text(plan_of("a", "b", version=2).model_dump_json())
    ledger = LedgerFile(folder)
    ledger.append(Invited(token="0" * 16, uses=2, expires=9.0, name=EVIL), Redeemed(token="0" * 16, peer="a", at=5.0))
    member = MEMBER.model_copy(update={"name": "Ann's PC", "device": f"GPU {EVIL}", "does": EVIL})
    health = Health(sentence=f"Training well. {EVIL}")
    overview = OVERVIEW.model_copy(update={"members": {"a": member}, "health": health})
    (folder / "status.json").write_text(json.dumps({"overview": overview.model_dump(mode="json")}))
    wishes = WishFile(folder)
    wishes.add(Paused(at=7.0))
    wishes.add(WishAnswer(at=8.0, to=1, done=True, text="paused after step 20 of 90"))
    return folder


def report(folder: Path, out: Path) -> Tags:
    result = CliRunner().invoke(app, ["report", "--state-dir", str(folder), "--out", str(out)])
    assert result.exit_code == 0, result.output
    return Tags(out.read_text(encoding="utf-8"))


def test_a_report_tells_of_the_run_and_fetches_and_runs_nothing(tmp_path: Path) -> None:
    found = report(written(tmp_path), tmp_path / "report.html")
    for words in ("30 of 90", "the first plan", "paused after step 20 of 90", "GPU", "240", "1 of 2"):
        assert words in found.said
    assert "over slow boundaries" not in found.said
    planning = Planning.model_validate({"wire": "bf16", "slow_wire": "int8"})
    (tmp_path / "job.json").write_text(JOB.model_copy(update={"plan": planning}).model_dump_json())
    assert "bf16; over slow boundaries it may be int8" in report(tmp_path, tmp_path / "report.html").said
    assert found.opened.count("svg") == 2
    assert not {"script", "img", "link", "iframe"}.intersection(found.opened)
    assert found.links == []
    assert EVIL in found.said  # as text


def test_a_report_says_everybodys_share_of_the_work_also_of_those_who_have_left(tmp_path: Path) -> None:
    folder = written(tmp_path)
    rows = MetricsFile(folder / "metrics.jsonl")
    append_shares(folder, plan_of("a", "gone", version=1), rows)
    append_shares(folder, plan_of("a", version=2), rows)
    facts = RunFacts.of(folder)
    assert facts.shares == pytest.approx({"a": 20.5 / 30, "gone": 9.5 / 30}), "plan 1 has made 19 steps of 30"
    said = report(folder, tmp_path / "report.html").said
    assert "gone" in said
    assert "68.3%" in said
    assert "31.7%" in said


def test_a_run_without_a_step_has_a_report_and_a_folder_without_a_run_has_none(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(JOB.model_dump_json())
    assert "0 of 90" in report(tmp_path, tmp_path / "report.html").said
    empty = tmp_path / "empty"
    empty.mkdir()
    result = CliRunner().invoke(app, ["report", "--state-dir", str(empty), "--out", str(tmp_path / "two.html")])
    assert result.exit_code == 2
    assert not (tmp_path / "two.html").exists()
    assert "holds no run" in result.stderr


def test_a_report_calls_members_by_their_names_and_says_what_they_do_also_while_they_are_away(tmp_path: Path) -> None:
    folder, peer = written(tmp_path), f"{'1' * 40}q3bDsY"
    overview = OVERVIEW.model_copy(
        update={"members": {peer: MEMBER.model_copy(update={"role": "gone", "does": "has left", "name": "Ann's PC"})}}
    )
    (folder / "status.json").write_text(json.dumps({"overview": overview.model_dump(mode="json")}))
    event = PlanEvent(plan=3, why="q3bDsY came: 2 stages x 1 peer, gpipe: 0.5 s a step predicted", called_at=1.0,
                      in_force_at=2.0, step=25, repeated=0, source="replicas")  # fmt: skip
    append(folder, event)
    with locked(folder):
        found = report(folder, tmp_path / "report.html")
    for words in ("Ann's PC (q3bDsY) joined", "has left", "cpu"):
        assert words in found.said
    assert "stages x" not in found.said


def test_a_value_far_above_the_others_is_marked_and_flattens_nothing() -> None:
    usual = [(float(step), 0.2 + 0.001 * (step % 7)) for step in range(1, 101)]
    odd = [*usual[:9], (10.0, 30.0), *usual[10:]]
    drawn = chart("t", "seconds", [Curve("c", "train", odd), Curve("d", "eval", [(1.0, 17.0), (2.0, 0.2)])], cuts=True)
    assert "above the chart: up to 30 seconds" in drawn
    assert [drawn.count(f'<path class="{style}"') for style in ("train", "eval")] == [1, 1]
    heights = [float(place.split(",")[1]) for place in re.findall(r'points="([^"]*)"', drawn)[0].split()]
    assert max(heights) - sorted(heights)[2] > 3, "the others can be told apart"
    whole = chart("t", "seconds", [Curve("c", "train", usual)], cuts=True)
    assert "above the chart" not in whole
    assert chart("t", "seconds", [Curve("c", "train", usual)]) == whole


def test_curves_stay_within_their_chart() -> None:
    points = [(float(step), (-1.0) ** step * step) for step in range(1, 5000)]
    drawn = chart("t", "u", [Curve("c", "train", points)], [100.0, 9000.0])
    places = re.findall(r'points="([^"]*)"', drawn)[0].split()
    xs, ys = zip(*(map(float, place.split(",")) for place in places), strict=True)
    assert 64 <= min(xs) <= max(xs) <= 844
    assert 14 <= min(ys) <= max(ys) <= 260
    assert drawn.count('class="mark"') == 1


@pytest.mark.parametrize("points", [[(1.0, 2.0)], [(1.0, 0.0), (2.0, 0.0)], [(5.0, 1e-9), (6.0, 1e9)]])
def test_a_chart_of_few_or_odd_points_can_be_drawn(points: list[tuple[float, float]]) -> None:
    assert "nan" not in chart("t", "u", [Curve("c", "train", points)]).lower()


def test_thinning_keeps_the_mean_and_the_last_step_and_ticks_are_round() -> None:
    points = [(float(step), float(step)) for step in range(1, 1201)]
    few = thinned(points, 600)
    assert (len(few), few[-1]) == (600, (1200.0, 1199.5))
    assert thinned(points[:600], 600) == points[:600]
    assert ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert ticks(1, 3, whole=True) == [1, 2, 3]
