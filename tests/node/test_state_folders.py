"""A command without --state-dir finds the folder of the only node there is, and else says which there are."""

from pathlib import Path

import pytest

from dtfm_node.commands.running_nodes import running_folders
from dtfm_node.commands.state_folders import default_folder, folder_for, folder_of
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import locked
from tests.node.doctor_hosts import INVITE

ONE, TWO = "1" * 16, "2" * 16


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this user's programs keep their data."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_each_swarm_has_a_folder_of_its_own_under_the_systems_data_folder(data: Path) -> None:
    assert default_folder(ONE) != default_folder(TWO)
    assert default_folder(ONE).is_relative_to(data)
    assert list(data.iterdir()) == [], "it is named, not made"


def test_the_folder_that_is_named_is_taken_and_else_the_only_one(tmp_path: Path) -> None:
    default_folder(ONE).mkdir(parents=True)
    assert folder_of(None) == default_folder(ONE)
    assert folder_of(tmp_path / "mine") == tmp_path / "mine"


def test_without_a_folder_it_says_how_to_name_one() -> None:
    with pytest.raises(UserError, match=r"no node has joined .*--state-dir"):
        folder_of(None)


def test_of_several_folders_all_are_listed_and_which_runs() -> None:
    with locked(default_folder(ONE)):
        default_folder(TWO).mkdir()
        with pytest.raises(UserError) as caught:
            folder_of(None)
        assert f"--state-dir {default_folder(ONE)} (running) or --state-dir {default_folder(TWO)}" in str(caught.value)
        assert folder_of(None, running=True) == default_folder(ONE), "only a node that runs can leave"
    with pytest.raises(UserError, match="no node runs"):
        folder_of(None, running=True)


def test_where_nothing_lies_in_its_place_the_nodes_that_run_elsewhere_are_named(tmp_path: Path) -> None:
    """By their command lines, as they were typed; those of single devices, and of nodes that have ended, are not."""
    mine, other = tmp_path / "m 2", tmp_path / "ended"
    python, program = "/usr/bin/python3", "/x/bin/dtfm-node"
    commands = [
        ([python, program, "join", "--state-dir", "m 2"], tmp_path),
        ([python, program, "join", "--yes", f"--state-dir={mine / 'devices' / 'cpu'}"], tmp_path),
        ([python, program, "join", "--state-dir", str(other)], tmp_path),
        ([python, program, "status", "--state-dir", str(other)], tmp_path),
        ([python, "/x/else", "join", "--state-dir", str(mine)], tmp_path),
        ([python, program, "join"], tmp_path),
        ([], tmp_path),
    ]
    with locked(mine), locked(mine / "devices" / "cpu"):
        assert running_folders(commands) == [mine]
    assert running_folders(commands) == []


def test_links_and_files_beside_the_folders_are_no_nodes(tmp_path: Path) -> None:
    default_folder(ONE).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    default_folder(TWO).symlink_to(tmp_path / "elsewhere")
    default_folder("3" * 16).write_text("")
    assert folder_of(None) == default_folder(ONE)


def test_the_folder_with_which_an_invite_would_be_joined_is_found_without_making_it(data: Path) -> None:
    """For the doctor, who is also asked with an invite that is none."""
    assert folder_for(None, INVITE.encode()) == default_folder(INVITE.swarm)
    assert folder_for(data / "mine", "no invite") == data / "mine"
    assert folder_for(None, "no invite") is None
    assert list(data.iterdir()) == []
