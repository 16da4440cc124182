"""`dtfm-node remove` deletes what a node keeps, and nothing that is anybody else's."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtfm_node.commands.consent import CONSENT, Consent
from dtfm_node.commands.remove import Removal
from dtfm_node.main import app
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import GB
from dtfm_protocol.process.state_dir import locked

SHARD = f"{'a' * 64}.tokens"
SNAPSHOT = "step-00000005-plan-1-layers-0-2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The state folder of a node that has trained, and was killed while it wrote."""
    folder = tmp_path / "node"
    with locked(folder):
        Consent(folder, "1" * 16).keep()
    for name in ("key", "credential.json", "status.json", ".status.json.tmp", "counter", "heard.json", "promise.json"):
        (folder / name).write_text("x")
    (folder / "plan.json").write_text("{}")
    for sub, names in {
        "tokens": (SHARD, f".{SHARD}.0123abcd"),
        "base": (f"{'0' * 64}.safetensors", ".part-0123456789abcdef"),
        "snapshots": (f"{SNAPSHOT}.safetensors", f"{SNAPSHOT}.json", f"{SNAPSHOT}.draft", ".coming-5-0"),
    }.items():
        (folder / sub).mkdir()
        for name in names:
            (folder / sub / name).write_bytes(b"x" * 1000)
    return folder


def remove(folder: Path) -> str:
    with Removal.of(folder, "") as removal:
        return removal.carry_out()


def refused(folder: Path, words: str) -> None:
    """It says so, and everything there is as before."""
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UserError, match=words):
        remove(folder)
    assert sorted(folder.parent.rglob("*")) == before


def test_all_that_a_node_keeps_goes_and_what_was_freed_is_said(folder: Path) -> None:
    with (folder / "tokens" / SHARD).open("r+b") as file:
        file.truncate(3 * GB)
    with Removal.of(folder, "") as removal:
        assert "training text: 3 GB" in removal.screen()
        assert "parts of the model: " in removal.screen()
        said = removal.carry_out()
    assert said == f"removed: 3 GB freed; {folder} is gone"
    assert list(folder.parent.iterdir()) == []


def test_what_others_put_there_stays_and_is_named(folder: Path) -> None:
    for name in ("thesis.txt", "tokens/notes.txt", "snapshots/holiday.jpg"):
        (folder / name).write_text("mine")
    said = remove(folder)
    assert said.endswith(f"{folder} stays, for what in it is not a node's: snapshots, thesis.txt, tokens")
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"thesis.txt", "tokens/notes.txt", "snapshots/holiday.jpg"}


def test_nothing_is_deleted_through_links(folder: Path, tmp_path: Path) -> None:
    """The folder itself, one in it, or a file."""
    elsewhere = tmp_path / "elsewhere"
    (folder / "tokens").rename(elsewhere)
    (folder / "tokens").symlink_to(elsewhere)
    (folder / "key").rename(tmp_path / "key")
    (folder / "key").symlink_to(tmp_path / "key")
    (folder / "empty").mkdir()
    (folder.parent / "link").symlink_to(folder)
    refused(folder.parent / "link", "is a link")
    said = remove(folder)
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted((SHARD, f".{SHARD}.0123abcd"))
    assert (tmp_path / "key").read_text() == "x"
    assert "tokens" in said
    assert "key" in said


def test_a_node_that_runs_is_left_alone(folder: Path) -> None:
    with locked(folder):
        refused(folder, r"a node runs with .*dtfm-node leave")


@pytest.mark.parametrize("mark", ["swarm", "job.json", "ports.json"])
def test_a_folder_that_is_a_coordinators_too_is_left_alone(folder: Path, mark: str) -> None:
    (folder / mark).write_text("x")
    refused(folder, "coordinator's state or a solo training")


def test_a_folder_that_no_node_has_joined_with_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_text("of somebody else")
    refused(home, "no node of yours")
    refused(tmp_path / "nowhere", "there is no folder")


def test_a_removal_that_was_cut_short_can_be_begun_again(folder: Path) -> None:
    with Removal.of(folder, "") as removal:
        for path in list(removal.sizes)[:-3]:
            path.unlink()
    assert (folder / CONSENT).exists()
    assert "is gone" in remove(folder)


def test_without_a_terminal_it_wants_a_yes(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert CliRunner().invoke(app, ["remove", "--state-dir", str(folder)]).exit_code == 2
    assert sorted(folder.rglob("*")) == before
    result = CliRunner().invoke(app, ["remove", "--yes", "--state-dir", str(folder)])
    assert (result.exit_code, "is gone" in result.output) == (0, True)
