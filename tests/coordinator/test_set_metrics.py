"""What is told of the sets of an evaluation: everywhere the same, by their names, and nothing where there are none."""

import json
import math
from pathlib import Path

import pytest
from docs.generate.full_overview import OVERVIEW
from typer.testing import CliRunner

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.main import app
from dtfm_coordinator.records.member_records import append_shares
from dtfm_coordinator.serve.boards.board_feed import scalars
from dtfm_coordinator.serve.web.metrics_text import metrics_text
from dtfm_coordinator.tools.model_card import CardFacts, card
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.step_metrics import SetMetrics, StepMetrics
from dtfm_protocol.job.step_words import step_in_words
from tests.coordinator.peers import JOB, Peers, plan_of, row
from tests.coordinator.test_model_card import MANIFEST

SETS = (SetMetrics.of("near", 30.0, 15, 20), SetMetrics.of("far.1", 8.0, 0, 4))


def evaluated(step: int) -> StepMetrics:
    return row(step).model_copy(update={"eval_loss": 38 / 24, "sets": SETS})


def test_a_sets_metrics_come_of_its_sums() -> None:
    assert SETS[0] == SetMetrics(name="near", loss=1.5, perplexity=math.exp(1.5), accuracy=0.75, tokens=20)
    assert SetMetrics.of("a", 1e9, 1, 1).perplexity == pytest.approx(1e20)  # as far as numbers are told
    assert "sets" not in json.loads(row(1).model_dump_json())
    assert StepMetrics.model_validate_json(evaluated(2).model_dump_json()) == evaluated(2)


def test_boards_have_them_under_their_names() -> None:
    found = {name: value for name, value in scalars(evaluated(2)).items() if name.startswith("eval/")}
    assert found == {
        "eval/loss": 38 / 24,
        "eval/near/loss": 1.5, "eval/near/perplexity": math.exp(1.5), "eval/near/accuracy": 0.75,
        "eval/far.1/loss": 2.0, "eval/far.1/perplexity": math.exp(2.0), "eval/far.1/accuracy": 0.0,
    }  # fmt: skip
    assert "on held-out text 1.5833 (near 1.5000, far.1 2.0000);" in step_in_words(evaluated(2), 9, [])


async def test_status_overview_and_prometheus_tell_of_the_newest(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a", "b")
    peers.state.plan = plan_of("a", "b")
    await peers.announcer.say("training", "plan 1")
    await peers.report("a", "training", plan_version=1, step=3, rows=(row(1), evaluated(2), row(3)))
    status = StatusFile(peers.context, peers.state, peers.announcer, peers.rows)
    status.write()
    overview = status.feed.newest
    assert overview is not None
    assert overview.figures.sets == SETS
    lines = metrics_text(overview).splitlines()
    for name, near in (("loss", 1.5), ("perplexity", math.exp(1.5)), ("accuracy_ratio", 0.75)):
        assert f'dtfm_evaluation_set_{name}{{set="near"}} {near!r}' in lines
    assert 'dtfm_evaluation_set_loss{set="far.1"} 2' in lines
    without = OVERVIEW.model_copy(update={"figures": OVERVIEW.figures.model_copy(update={"sets": ()})})
    assert "_set_" not in metrics_text(without)
    shown = CliRunner().invoke(app, ["status", "--state-dir", str(tmp_path)])
    assert "near 1.5000" in " ".join(shown.output.split())


def test_report_and_card_tell_of_the_newest(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(JOB.model_dump_json())
    rows = MetricsFile(tmp_path / "metrics.jsonl")
    append_shares(tmp_path, plan_of("a", "b", version=1), rows)
    rows.append(row(1))
    page = tmp_path / "report.html"
    CliRunner().invoke(app, ["report", "--state-dir", str(tmp_path), "--out", str(page)])
    assert "Sets after" not in page.read_text()
    rows.append(evaluated(2))
    rows.append(row(3))
    result = CliRunner().invoke(app, ["report", "--state-dir", str(tmp_path), "--out", str(page)])
    assert result.exit_code == 0, result.output
    for words in ("Sets after step 2", "near", "1.5000", "4.482", "75.0%", "far.1"):
        assert words in page.read_text()
    said = card(CardFacts.of(tmp_path, MANIFEST))
    assert "| On the set near | loss 1.5000, perplexity 4.482, 75.0% of tokens foretold |" in said
