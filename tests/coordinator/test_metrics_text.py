"""The figures for Prometheus are what its own tool takes, of bounded size, and all that the dashboard asks for."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.serve.web.metrics_text import MOST_MEMBERS, metrics_text
from dtfm_coordinator.swarm.overview.overview import CheckpointView, MemberView, Overview, Storage
from tests.coordinator.peers import Peers, plan_of, row

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
MEMBER = MemberView(
    name='An "odd"\\ na\nme', device="cpu", role="trains", does="", level="good", stage=0, layers=(1, 4),
    micro_batches=1, step=2, tokens=8.0, share=0.5, seconds=1.0, seen_at=None,
    sent_bytes=1, received_bytes=2, version="0.1.0", up_gbps=None,
    down_gbps=None,
)  # fmt: skip


async def overview_in(folder: Path) -> Overview:
    """Of a run of which everything is known."""
    peers = Peers(folder)
    await peers.join("a", "b")
    peers.state.plan = plan_of("a", "b")
    await peers.announcer.say("training", "plan 1")
    evaluated = row(2).model_copy(update={"eval_loss": 1.5, "predicted_seconds": 0.2})
    await peers.report("a", "training", plan_version=1, step=2, rows=(row(1), evaluated))
    status = StatusFile(peers.context, peers.state, peers.announcer, peers.rows)
    status.write()
    assert status.feed.newest is not None
    storage = Storage(checkpoints=(CheckpointView(step=2, at=1.5e9, size=1000),), free_bytes=10**12)
    return status.feed.newest.model_copy(update={"storage": storage})


async def test_the_figures_are_those_of_the_overview_and_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    overview = await overview_in(tmp_path)
    lines = metrics_text(overview).splitlines()
    assert f"dtfm_step {overview.progress.step}" in lines
    assert "dtfm_evaluation_loss 1.5" in lines
    assert 'dtfm_phase{phase="training"} 1' in lines
    assert 'dtfm_members{role="spare"} 1' in lines or 'dtfm_members{role="trains"} 1' in lines
    unknown = metrics_text(overview.model_copy(update={"plan": None}))
    assert "dtfm_plan_version" not in unknown


async def test_what_members_call_themselves_makes_no_lines_and_many_of_them_no_endless_text(tmp_path: Path) -> None:
    overview = await overview_in(tmp_path)
    many = {f"peer {number}": MEMBER for number in range(MOST_MEMBERS + 100)}
    text = metrics_text(overview.model_copy(update={"members": many}))
    assert r'name="An \"odd\"\\ na me"' in text
    assert text.count("\ndtfm_member_tokens{") == MOST_MEMBERS
    assert all(re.match(r"# (HELP|TYPE) \w+ |\w+(\{.*\})? \S+$", line) for line in text.splitlines())


@needs_promtool
@pytest.mark.process
async def test_prometheus_own_tool_finds_nothing_wrong_with_them(tmp_path: Path) -> None:
    text = metrics_text(await overview_in(tmp_path))
    pipe = asyncio.subprocess.PIPE
    tool = await asyncio.create_subprocess_exec(str(PROMTOOL), "check", "metrics", stdin=pipe, stdout=pipe, stderr=pipe)
    said, complained = await tool.communicate(text.encode())
    assert (tool.returncode, (said + complained).decode()) == (0, "")


@needs_promtool
@pytest.mark.process
def test_the_sample_configuration_is_what_prometheus_takes() -> None:
    command = [str(PROMTOOL), "check", "config", "--lint-fatal", str(DEPLOY / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_the_dashboard_and_the_alerts_ask_for_figures_that_there_are(tmp_path: Path) -> None:
    known = set(re.findall(r"^# TYPE (\w+)", metrics_text(await overview_in(tmp_path)), re.MULTILINE))
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked.append((DEPLOY / "alerts.yml").read_text())
    used = {name for text in asked for name in re.findall(r"\bdtfm_\w+", text)}
    assert used - known == set()
    assert known - used <= {"dtfm_run_info", "dtfm_tokens", "dtfm_evaluation_step", "dtfm_learning_rate",
                            "dtfm_gradient_norm", "dtfm_checkpoint_step", "dtfm_checkpoint_timestamp_seconds",
                            "dtfm_member_tokens", "dtfm_member_healthy",
                            "dtfm_member_sent_bytes_total", "dtfm_member_received_bytes_total"}  # fmt: skip
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]]
    assert len(set(places)) == len(places)
