"""The files by which a system starts a node by itself: a systemd unit, a launchd agent, a Windows task. Pure."""

import plistlib
from collections.abc import Sequence
from xml.sax.saxutils import escape

RESTART_SECONDS = 60
"""Seconds before a node that has ended with a fault is started again."""
STOP_SECONDS = 120
"""Seconds that a node has to hand over what it alone holds when the service is stopped."""


def unit_name(swarm: str) -> str:
    """Return the name of the systemd unit of a swarm's node."""
    return f"dtfm-node-{swarm}.service"


def systemd_unit(swarm: str, command: Sequence[str]) -> str:
    """Return a systemd user unit that runs `command` until the swarm is done, and starts it again after faults."""
    return f"""\
[Unit]
Description=dtfm: this machine trains in the swarm {swarm}
StartLimitIntervalSec=0

[Service]
ExecStart={" ".join(map(_systemd_word, command))}
Restart=on-failure
RestartSec={RESTART_SECONDS}
# A node that is stopped hands over what it alone holds first; its libp2p daemon must outlive it until then.
KillMode=mixed
TimeoutStopSec={STOP_SECONDS}
SuccessExitStatus=130 143
# Nobody who uses the machine is to notice.
Nice=19
CPUWeight=idle
IOSchedulingClass=idle
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def launchd_label(swarm: str) -> str:
    """Return the label of the launchd agent of a swarm's node."""
    return f"org.dtfm.node.{swarm}"


def launchd_agent(swarm: str, command: Sequence[str]) -> bytes:
    """Return a launchd agent (macOS) that runs `command`, and starts it again after faults. Untested."""
    return plistlib.dumps(
        {
            "Label": launchd_label(swarm),
            "ProgramArguments": list(command),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_SECONDS,
            "ExitTimeOut": STOP_SECONDS,
            "ProcessType": "Background",
            "LowPriorityIO": True,
            "Nice": 19,
        }
    )


def windows_task(swarm: str, distribution: str) -> str:
    """Return a Windows task, in Task Scheduler's XML, that starts WSL at logon and keeps it up. Untested.

    What runs inside, the systemd unit there decides.

    Args:
        swarm: the swarm's id.
        distribution: name of the WSL distribution in which the node was installed.
    """
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo><Description>dtfm: keeps WSL up for the swarm {escape(swarm)}</Description></RegistrationInfo>
  <Triggers><LogonTrigger><Enabled>true</Enabled></LogonTrigger></Triggers>
  <Principals><Principal id="Author"><LogonType>InteractiveToken</LogonType></Principal></Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>true</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure><Interval>PT1M</Interval><Count>999</Count></RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>wsl.exe</Command>
      <Arguments>-d {escape(distribution)} --exec sleep infinity</Arguments>
    </Exec>
  </Actions>
</Task>
"""


def _systemd_word(word: str) -> str:
    """Quote a word of a command line as systemd reads it."""
    quoted = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{quoted}"' if quoted != word or any(char.isspace() or char in "';#" for char in word) else word
