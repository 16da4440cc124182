"""`dtfm-node service`: has the system start the node of a swarm by itself, and again whenever it fails."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dtfm_node.commands.consent import CONSENT
from dtfm_node.commands.kept_invite import INVITE
from dtfm_node.commands.remove import LOGS
from dtfm_node.commands.service_files import launchd_agent, launchd_label, systemd_unit, unit_name, windows_task
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.process.state_dir import is_live, write_atomically

WAIT_SECONDS = 30 * 86_400
"""Seconds for which a service waits for a coordinator that is away."""
Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def run_quietly(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of the system, and keep what it says."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def system() -> Literal["systemd", "launchd"]:
    """Return what starts services on this machine.

    Raises:
        UserError: neither systemd nor launchd does.
    """
    if sys.platform == "darwin":
        return "launchd"
    if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
        raise UserError(
            "this system has no systemd to start services with: run `dtfm-node join --yes` from whatever starts "
            "programs here (in WSL: put systemd=true under [boot] in /etc/wsl.conf, then `wsl --shutdown`)"
        )
    return "systemd"


def check_not_installed(folder: Path) -> None:
    """Check that the system does not start the node of `folder` by itself: without its files it could not.

    Raises:
        UserError: it does.
    """
    if (folder / INVITE).is_file():
        swarm = Invite.decode(f"@{folder / INVITE}").swarm
        service = NodeService(folder, swarm, "launchd" if sys.platform == "darwin" else "systemd")
        if service.file.exists() and str(folder.absolute()) in service.file.read_text(encoding="utf-8"):
            raise UserError(f"the system starts the node in {folder}: run `dtfm-node service remove` first")


@dataclass(frozen=True)
class NodeService:
    """The service of the node in one state folder."""

    folder: Path
    swarm: str
    kind: Literal["systemd", "launchd"]
    run: Run = run_quietly
    home: Path = field(default_factory=Path.home)

    @classmethod
    def of(cls, folder: Path) -> "NodeService":
        """Return the service of the node that has joined with `folder`.

        Raises:
            UserError: nobody has agreed there yet that this machine takes part, or nothing here starts services.
        """
        if not (folder / CONSENT).exists() or not (folder / INVITE).exists():
            raise UserError(
                f"no node has joined with {folder} yet: run `dtfm-node join` once at a terminal, agree, stop it with "
                "Ctrl+C, and install the service then"
            )
        return cls(folder, Invite.decode(f"@{folder / INVITE}").swarm, system())

    @property
    def file(self) -> Path:
        """The file by which the system knows the service."""
        if self.kind == "launchd":
            return self.home / "Library" / "LaunchAgents" / f"{launchd_label(self.swarm)}.plist"
        config = os.environ.get("XDG_CONFIG_HOME") or self.home / ".config"
        return Path(config) / "systemd" / "user" / unit_name(self.swarm)

    @property
    def command(self) -> list[str]:
        """The command line of the service."""
        folder = self.folder.absolute()
        return [
            str(Path(sys.executable).parent / "dtfm-node"), "join", "--yes", f"@{folder / INVITE}", "--state-dir",
            str(folder), "--log-file", str(folder / LOGS[0]), "--timeout", str(WAIT_SECONDS),
        ]  # fmt: skip

    def install(self) -> str:
        """Write the service's file, and have the system start it now and at each login; return what was done.

        Raises:
            UserError: the node runs already, or the system refuses.
        """
        if is_live(self.folder) and not self.file.exists():
            raise UserError(f"a node runs with {self.folder} already: have it leave first, with `dtfm-node leave`")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self.kind == "launchd":
            write_atomically(self.file, launchd_agent(self.swarm, self.command))
            self._do(["launchctl", "bootstrap", f"gui/{os.getuid()}", str(self.file)])
            return f"{self.file} is installed, and runs. (On macOS this was never tried.)"
        write_atomically(self.file, systemd_unit(self.swarm, self.command))
        self._do(["systemctl", "--user", "daemon-reload"])
        self._do(["systemctl", "--user", "enable", "--now", self.file.name])
        lines = [
            f"The node runs as a service now: {self.file.name}.",
            f"It starts when you log in, and again whenever it fails. Its log: {self.folder / LOGS[0]}",
            "It ends when you log out. To have it run from boot on, whoever is logged in, say once:",
            f"  sudo loginctl enable-linger {os.environ.get('USER', '$USER')}",
        ]
        if distribution := os.environ.get("WSL_DISTRO_NAME"):
            lines += self._windows_steps(distribution)
        return "\n".join(lines)

    def _windows_steps(self, distribution: str) -> list[str]:
        task = self.folder / "windows-task.xml"
        write_atomically(task, windows_task(self.swarm, distribution).encode("utf-16"))
        return [
            "Windows ends WSL when nothing runs in it. To have it started at logon and kept up (never tried here), run",
            "in a Windows command prompt:",
            f'  schtasks /create /tn dtfm-{self.swarm} /xml "\\\\wsl.localhost\\{distribution}'
            f'{str(task.absolute()).replace("/", chr(92))}"',
        ]

    def remove(self) -> str:
        """Stop the service, which lets the node hand over what it alone holds, and delete its file; return what was
        done.

        Raises:
            UserError: there is no such service, or the system refuses.
        """
        if not self.file.exists():
            raise UserError(f"no service is installed for the node in {self.folder}")
        if self.kind == "launchd":
            self.run(["launchctl", "bootout", f"gui/{os.getuid()}/{launchd_label(self.swarm)}"])
        else:
            self._do(["systemctl", "--user", "disable", "--now", self.file.name])
        self.file.unlink(missing_ok=True)
        if self.kind == "systemd":
            self._do(["systemctl", "--user", "daemon-reload"])
        return f"The service is gone. What the node has kept stays in {self.folder}: `dtfm-node remove` deletes it."

    def status(self) -> str:
        """Return whether the service is installed, and whether it runs."""
        if not self.file.exists():
            return f"not installed: `dtfm-node service install` does that for the node in {self.folder}"
        if self.kind == "launchd":
            label = f"gui/{os.getuid()}/{launchd_label(self.swarm)}"
            state = "runs" if self.run(["launchctl", "print", label]).returncode == 0 else "does not run"
        else:
            answer = self.run(["systemctl", "--user", "is-active", self.file.name]).stdout.strip()
            state = {"active": "runs", "activating": "is starting"}.get(answer, f"does not run ({answer or 'unknown'})")
        return f"installed, and {state}; its log: {self.folder / LOGS[0]}"

    def _do(self, command: Sequence[str]) -> None:
        try:
            done = self.run(command)
        except OSError as error:
            raise UserError(f"cannot run {command[0]}: {error.strerror}") from None
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:300] or f"exit code {done.returncode}"
            raise UserError(
                f"`{' '.join(command)}` failed: {said}; log in as the user whose node it is (not with su or sudo), and "
                "try again"
            )
