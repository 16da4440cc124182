"""The owner's `status` shows what nodes say of themselves, whatever that is."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.main import app
from dtfm_protocol.control.messages import Report
from dtfm_protocol.discovery.records import Profile
from tests.coordinator.peers import Peers, plan_of

HOSTILE = ["[/]", "[bold", "[red]x[/red]", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "a\nb\rc"]


def shown(folder: Path) -> str:
    result = CliRunner().invoke(app, ["status", "--state-dir", str(folder)])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def acts(text: str) -> bool:
    """Whether any line would do more than be read."""
    return not all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("words", HOSTILE)
async def test_a_nodes_words_neither_end_the_owners_status_nor_act_on_its_terminal(tmp_path: Path, words: str) -> None:
    peers = Peers(tmp_path)
    await peers.join("a")
    peers.state.plan = plan_of("a")
    profile = Profile.model_validate(peers.records.listed["a"].model_dump() | {"device": words})
    peers.state.members.listed({"a": profile})
    await peers.report("a", "stalled", text=words)
    await peers.announcer.say("planning", f"a stalled ({words})")
    StatusFile(peers.context, peers.state, peers.announcer, peers.rows).write()
    status = json.loads((tmp_path / "status.json").read_text())
    (node,) = status["nodes"]
    assert not any(acts(text) for text in (status["text"], node["device"], node["text"]))
    said = shown(tmp_path)
    assert not acts(said)
    assert node["device"] in said, "and it is shown as it is, for it is no markup"


@pytest.mark.parametrize("words", HOSTILE)
async def test_a_status_that_nobody_has_cleaned_does_not_act_on_a_terminal_either(tmp_path: Path, words: str) -> None:
    """Some other program has written it."""
    peers = Peers(tmp_path)
    await peers.join("a")
    StatusFile(peers.context, peers.state, peers.announcer, peers.rows).write()
    values = json.loads((tmp_path / "status.json").read_text())
    overview = values["overview"]
    overview["members"]["a"] |= {"name": words, "device": words, "does": words}
    overview["members"][words] = overview["members"]["a"]
    overview["health"] |= {"sentence": words, "advice": words}
    overview["news"] = {words: {"at": 0.0, "level": "bad", "text": words, "advice": words}}
    (tmp_path / "status.json").write_text(json.dumps(values))
    result = CliRunner().invoke(app, ["status", "--state-dir", str(tmp_path)])
    assert not acts(result.output)


def test_a_status_of_another_version_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"at": time.time(), "phase": "training", "nodes": []}))
    result = CliRunner().invoke(app, ["status", "--state-dir", str(tmp_path)])
    assert (result.exit_code, "another version" in result.output) == (2, True)


def test_a_report_is_cleaned_where_it_is_read() -> None:
    report = Report.model_validate({"session": "s", "state": "idle", "text": "\x1b[2J[/]"})
    assert report.text == "\N{REPLACEMENT CHARACTER}[2J[/]"
