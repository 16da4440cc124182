"""A node as a service: files that the system takes, commands in their order, one line where something is missing."""

import plistlib
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dtfm_node.commands import kept_invite
from dtfm_node.commands.consent import Consent
from dtfm_node.commands.node_service import NodeService, check_not_installed
from dtfm_node.commands.service_files import launchd_agent, systemd_unit, windows_task
from dtfm_node.commands.state_folders import default_folder
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.process.logs import LOG_BYTES, LOG_PARTS, log, set_up
from dtfm_protocol.process.state_dir import locked
from tests.harness.requirements import needs
from tests.node.doctor_hosts import INVITE

SWARM = INVITE.swarm
ODD = ['/home/ann lee/50%/$x/"y"/dtfm-node', "join", "--yes", "a;b"]


class System:
    """What the system answers to commands, which it keeps."""

    def __init__(self, **codes: int) -> None:
        self.asked: list[list[str]] = []
        self._codes = codes

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(command))
        code = self._codes.get(next((word for word in command[1:] if not word.startswith("-")), ""), 0)
        return subprocess.CompletedProcess(command, code, "active\n", "Failed to connect to bus\n" if code else "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a node that has joined once."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("WSL_DISTRO_NAME", raising=False)
    folder = tmp_path / "node"
    with locked(folder):
        Consent(folder, SWARM).keep()
        kept_invite.keep(INVITE, folder)
    return folder


def service(folder: Path, system: System, kind: Any = "systemd") -> NodeService:
    return NodeService(folder, SWARM, kind, system, folder.parent)


def test_it_is_installed_looked_at_and_removed(folder: Path) -> None:
    system = System()
    one = service(folder, system)
    assert "not installed" in one.status()
    said = one.install()
    assert "enable-linger" in said, "why it ends at logout, and what to do"
    assert str(folder / "node.log") in said
    assert f"@{folder}/invite" in one.file.read_text()
    assert one.status().startswith("installed, and runs")
    assert "gone" in one.remove()
    assert not one.file.exists()
    name = f"dtfm-node-{SWARM}.service"
    assert [words[2:] for words in system.asked] == [
        ["daemon-reload"], ["enable", "--now", name], ["is-active", name], ["disable", "--now", name],
        ["daemon-reload"],
    ]  # fmt: skip
    with pytest.raises(UserError, match="no service is installed"):
        one.remove()


def test_what_the_system_refuses_is_said_with_what_to_do(folder: Path) -> None:
    with pytest.raises(UserError, match=r"Failed to connect to bus; log in as the user"):
        service(folder, System(**{"daemon-reload": 1})).install()


def test_a_node_that_runs_already_is_not_started_twice(folder: Path) -> None:
    with locked(folder), pytest.raises(UserError, match="dtfm-node leave"):
        service(folder, System()).install()


def test_a_node_that_the_system_starts_keeps_its_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent / ".config"))
    check_not_installed(folder)
    one = service(folder, System())
    one.install()
    with pytest.raises(UserError, match="dtfm-node service remove"):
        check_not_installed(folder)
    one.remove()
    check_not_installed(folder)


def test_nobody_is_made_to_take_part_by_a_service(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `dtfm-node join` once"):
        NodeService.of(tmp_path)


def test_inside_wsl_the_step_on_windows_is_written_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSL_DISTRO_NAME", "Ubuntu")
    said = service(folder, System()).install()
    assert "schtasks /create" in said
    assert (folder / "windows-task.xml").read_bytes().decode("utf-16") == windows_task(SWARM, "Ubuntu")


@pytest.mark.process
@needs("systemd-analyze")
@pytest.mark.parametrize("command", [["/bin/true", "join"], ["/bin/sh", *ODD]])
def test_systemd_takes_the_unit(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "dtfm-node-x.service"
    path.write_text(systemd_unit(SWARM, command))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)], capture_output=True, text=True, check=False,
        env={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")


def test_odd_paths_are_one_word_for_systemd() -> None:
    (line,) = (one for one in systemd_unit(SWARM, ODD).splitlines() if one.startswith("ExecStart="))
    assert line == 'ExecStart="/home/ann lee/50%%/$$x/\\"y\\"/dtfm-node" join --yes "a;b"'


def test_launchds_and_windows_files_are_what_their_readers_parse() -> None:
    agent = plistlib.loads(launchd_agent(SWARM, ODD))
    assert agent["ProgramArguments"] == ODD
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    task = windows_task(SWARM, "Ubuntu <22>").encode("utf-16")
    texts = [element.text for element in ElementTree.fromstring(task).iter()]
    assert "-d Ubuntu <22> --exec sleep infinity" in texts


def test_the_kept_invite_is_taken_where_it_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(UserError, match="there is no invite"):
        kept_invite.given_or_kept(None, None)
    folders = [default_folder(swarm) for swarm in (SWARM, "2" * 16)]
    for folder in folders:
        folder.mkdir(parents=True)
    kept_invite.keep(INVITE, folders[0])
    text, is_kept = kept_invite.given_or_kept(None, None)
    assert (Invite.decode(text), is_kept) == (INVITE, True)
    assert (folders[0] / "invite").stat().st_mode & 0o077 == 0
    kept_invite.keep(INVITE, folders[1])
    with pytest.raises(UserError, match="there is no invite"):
        kept_invite.given_or_kept(None, None)
    assert kept_invite.given_or_kept(None, folders[1])[1]
    assert kept_invite.given_or_kept("text", None) == ("text", False)


def test_a_services_log_never_takes_more_than_its_share(tmp_path: Path) -> None:
    before = log.handlers[:], log.level, log.propagate
    try:
        set_up("plain", file=tmp_path / "node.log")
        for _ in range(80):
            log.info("%s", "x" * (LOG_BYTES // 10))
    finally:
        for handler in log.handlers:
            handler.close()
        log.handlers[:], log.level, log.propagate = before
    sizes = {one.name: one.stat().st_size for one in tmp_path.iterdir()}
    assert set(sizes) == {"node.log", *(f"node.log.{part + 1}" for part in range(LOG_PARTS))}
    assert max(sizes.values()) <= LOG_BYTES


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write the log"):
        set_up("plain", file=tmp_path / "gone" / "node.log")
