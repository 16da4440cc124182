"""The owner's commands that steer a run, on the state folder of a coordinator that has served."""

import json
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtfm_coordinator.commands import owner_commands
from dtfm_coordinator.main import app
from dtfm_coordinator.owner.owner_desk import OwnerDesk
from dtfm_coordinator.owner.owner_wishes import Paused
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_protocol.process.state_dir import locked

PHASE = "training: plan 3 from step 400"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "invite").write_text("an invite\n")
    (tmp_path / "status.json").write_text(json.dumps({"text": PHASE}))
    return tmp_path


def said(folder: Path, *command: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*command, "--state-dir", str(folder)])
    return result.exit_code, str(result.stdout), str(result.stderr)


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        (["pause"], "paused", "the run stands still when it is served again, until `dtfm-coordinator resume`"),
        (["checkpoint"], "checkpoint", "a checkpoint is kept as soon as it is served again"),
        (["replan"], "plan", "a plan is made when it is served again"),
        (["finish", "--yes"], "finish", "the run ends with the state that is kept when it is served again"),
    ],
)
def test_where_no_coordinator_runs_the_wish_is_kept_for_the_next_one(
    folder: Path, command: list[str], kind: str, words: str
) -> None:
    assert said(folder, *command) == (0, f"no coordinator runs on {folder}: {words}\n", "")
    assert [wish.kind for wish in WishFile(folder).wishes.unanswered.values()] == [kind]


def test_a_run_that_is_not_paused_is_not_resumed_and_one_that_is_goes_on_when_served(folder: Path) -> None:
    code, _, error = said(folder, "resume")
    assert (code, error.count("\n")) == (2, 1)
    assert "the run is not paused" in error
    said(folder, "pause")
    assert said(folder, "resume")[:2] == (
        0,
        f"no coordinator runs on {folder}: the run goes on when it is served again\n",
    )
    assert not WishFile(folder).wishes.is_paused


@pytest.mark.parametrize("command", [["pause"], ["resume"], ["checkpoint"], ["replan"], ["finish", "--yes"]])
def test_a_folder_in_which_nobody_has_served_is_named(tmp_path: Path, command: list[str]) -> None:
    code, _, error = said(tmp_path, *command)
    assert (code, error.count("\n")) == (2, 1)
    assert "is no coordinator's that has served" in error
    assert list(tmp_path.iterdir()) == []


def test_whoever_does_not_say_yes_ends_no_run(folder: Path) -> None:
    result = CliRunner().invoke(app, ["finish", "--state-dir", str(folder)], input="n\n")
    assert result.exit_code == 1
    assert WishFile(folder).wishes.course is None


@pytest.mark.parametrize(("done", "code"), [(True, 0), (False, 2)])
def test_a_command_waits_until_the_coordinator_has_answered(folder: Path, done: bool, code: int) -> None:
    """The coordinator is this process, which holds the folder's lock."""
    answered = threading.Event()

    def coordinate() -> None:
        desk = OwnerDesk(WishFile(folder))
        while not answered.wait(0.01):
            desk.look()
            for wish in list(desk.wishes.unanswered.values()):
                (folder / "status.json").write_text(json.dumps({"text": "pausing for the owner"}))
                desk.answer(wish, "paused after step 411 of 1500; its state is kept", done=done)

    with locked(folder):
        coordinator = threading.Thread(target=coordinate)
        coordinator.start()
        found = said(folder, "pause")
        answered.set()
        coordinator.join()
    assert found[0] == code
    assert "paused after step 411 of 1500; its state is kept\n" in found[1 if done else 2]
    assert found[2].startswith("pausing: the step under way is finished")


@pytest.mark.parametrize(
    ("command", "words"), [("pause", "the run is paused already"), ("resume", "the run is not paused")]
)
def test_what_is_so_already_is_not_said_to_be_done_now(folder: Path, command: str, words: str) -> None:
    if command == "pause":
        desk = OwnerDesk(WishFile(folder))
        assert said(folder, "pause")[0] == 0
        desk.look()
        desk.answer_all(Paused, "paused after step 7 of 90")
    with locked(folder):
        assert said(folder, command, "--wait", "0") == (0, f"{words}\n", "")


def test_a_command_does_not_wait_for_ever_and_tells_what_the_run_does(folder: Path) -> None:
    with locked(folder):
        code, _, error = said(folder, "pause", "--wait", str(2 * owner_commands.LOOK_SECONDS))
    assert code == 1
    assert f"still wished for; the run says: {PHASE}" in error
    assert WishFile(folder).wishes.is_paused


def test_a_command_that_is_not_to_wait_says_what_will_happen(folder: Path) -> None:
    with locked(folder):
        code, out, _ = said(folder, "checkpoint", "--wait", "0")
    assert (code, out.count("\n")) == (0, 1)
    assert out.startswith("keeping a checkpoint: training stops for a moment")
