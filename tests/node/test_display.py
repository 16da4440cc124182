"""What a node shows of others' words does nothing to its terminal."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from dtfm_node.commands.node_status import status_lines
from dtfm_node.control.display import Display, show_timeouts
from dtfm_protocol.bounds import printable
from dtfm_protocol.control.messages import Phase, Report
from dtfm_protocol.job.step_metrics import StepMetrics

ROW = StepMetrics(
    step=8, loss=3.0, tokens=800, seconds=1.0, plan_version=6, learning_rate=1e-3, grad_norm=1.0, predicted_seconds=None
)
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


async def test_the_owners_pause_is_said_beside_the_last_step(tmp_path: Path) -> None:
    """And in words for people; once it is over, what the node does is said again."""
    display = Display("json")
    display.state("idle", "plan 6 ends with step 8")
    display.step(ROW, 90)
    display.phase(Phase(name="waiting", text="paused by the owner after step 8 of 90", paused=True))
    said = words_of(display, tmp_path)
    assert said[:2] == [
        "Nothing to compute for now: the owner has paused the run. There is nothing to do for you.",
        "The swarm: Paused by the owner after step 8 of 90.",
    ]
    assert said[2].startswith("Step 8 of 90")
    display.phase(Phase(name="training", text="plan 7"))
    assert not any("owner" in line or "The swarm" in line for line in words_of(display, tmp_path))


def words_of(display: Display, folder: Path) -> list[str]:
    display.save(folder / "status.json", Report(session="s", state="idle"), {})
    return list(json.loads((folder / "status.json").read_text())["words"])


def test_the_last_screen_of_a_node_that_has_left_shows_no_progress() -> None:
    written = io.StringIO()
    display = Display("plain")
    display._live = Live(console=Console(file=written, force_terminal=False, width=200), auto_refresh=False)
    with display:
        display.step(ROW, 90)
        display.state("finished", "plan 1")
    assert "This machine has left the swarm." in written.getvalue()
    assert "░" not in written.getvalue()


STATUS = {
    "running": True, "state": "training", "at": 100.0, "words": ["You compute layers 1-3.", "\x1b[2J"],
    "allowed": "1 thread, at most 2 GB of memory", "version": "1", "coordinator_version": "", "timeouts": {},
}  # fmt: skip


def test_a_status_says_what_holds_and_of_a_dead_node_what_it_said_last() -> None:
    assert status_lines(STATUS, 101.0) == [
        "The node is running.", "You compute layers 1-3.", printable("\x1b[2J"),
        "You allow: 1 thread, at most 2 GB of memory.", "Version 1; the coordinator's: not known yet.",
    ]  # fmt: skip
    killed = status_lines(STATUS | {"running": False}, 160.0)
    assert killed[:2] == ["The node is not running; 60 s ago it said:", "  You compute layers 1-3."]
    left = status_lines(STATUS | {"running": False, "state": "finished", "allowed": ""}, 160.0)
    assert left[0] == "The node is not running."
    assert not any(line.startswith("You allow") for line in left)


def test_a_table_of_peers_takes_names_for_names(capsys: pytest.CaptureFixture[str]) -> None:
    one = dict.fromkeys(("gap", "deviation", "round_trip", "silence_limit", "longest_action", "action_limit"), 1.0)
    show_timeouts({"[/][x]": one, "\x1b[2J": one})
    said = capsys.readouterr().out
    assert "[/][x]" in said
    assert "\x1b" not in said
