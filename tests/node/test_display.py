"""What a node shows of others' words does nothing to its terminal."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from dtfm_node.control.display import Display, show_timeouts
from dtfm_protocol.control.messages import Phase, Report

WORDS = "\x1b[2J\x1b]0;owned\x07 [/] [red]\u202egnp.exe\nnext"


def phase() -> Phase:
    return Phase.model_validate({"name": "waiting", "text": WORDS})


def test_live_lines_show_the_swarms_phase_and_obey_none_of_it() -> None:
    written = io.StringIO()
    display = Display("plain")
    display._live = Live(console=Console(file=written, force_terminal=False, width=200), auto_refresh=False)
    with display:
        display.phase(phase())
        display.state("idle", "[/] waiting")
    said = written.getvalue()
    assert "[/] [red]" in said
    assert "owned" in said
    assert not any(char in said for char in "\x1b\x07\u202e")


async def test_the_status_file_obeys_none_of_it_either(tmp_path: Path) -> None:
    display = Display("json")
    display.phase(phase())
    display.save(tmp_path / "status.json", Report(session="s", state="idle", text=WORDS), {})
    values = json.loads((tmp_path / "status.json").read_text())
    assert values["swarm"].isprintable()
    assert values["text"].isprintable()


def test_a_table_of_peers_takes_names_for_names(capsys: pytest.CaptureFixture[str]) -> None:
    one = dict.fromkeys(("gap", "deviation", "round_trip", "silence_limit", "longest_action", "action_limit"), 1.0)
    show_timeouts({"[/][x]": one, "\x1b[2J": one})
    said = capsys.readouterr().out
    assert "[/][x]" in said
    assert "\x1b" not in said
