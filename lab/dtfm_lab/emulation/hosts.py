"""The hosts of a lab: network namespaces, each with an address and a TUN device."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dtfm_lab.emulation.tun import DEVICE, open_tun
from dtfm_protocol.errors import UserError

_PREFIX = "lab"
_NAME = re.compile(rf"^{_PREFIX}(\d+)-\d+$")
_numbers = itertools.count()
"""Numbers of this process's labs, of which it may have several."""
_MTU = 1500
_QUEUE_PACKETS = 5000
_CONGESTION_CONTROL = "cubic"
"""TCP's congestion control as volunteers' machines have it, whatever this one is set to."""
_GRACE_SECONDS = 3.0
"""Seconds that what still runs on a host has to end when it is asked to."""
_ENDED_LOOK_SECONDS = 0.05
_NAMESPACES = Path("/run/netns")
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_SETTINGS = (
    "net.ipv6.conf.all.disable_ipv6=1",
    f"net.ipv4.tcp_congestion_control={_CONGESTION_CONTROL}",
    # Else the window of a connection that was idle for a moment begins anew, and a step's first messages take round
    # trips that a link shrunk with the model's sizes would not show: windows do not shrink with them.
    "net.ipv4.tcp_slow_start_after_idle=0",
    # A namespace's processes keep no memory of a link that has since changed.
    "net.ipv4.tcp_no_metrics_save=1",
)


class Hosts:
    """The hosts of one lab. Create them with `made`."""

    def __init__(self, names: Sequence[str], devices: Sequence[int]) -> None:
        self.names, self.devices = tuple(names), tuple(devices)

    @classmethod
    @contextlib.contextmanager
    def made(cls, count: int) -> Iterator["Hosts"]:
        """Make `count` hosts; nothing of them, nor in them, is left after the block. What killed processes left is
        swept first.

        Raises:
            UserError: this machine does not let us.
        """
        check()
        _sweep()
        _allow()
        names: list[str] = []
        devices: list[int] = []
        try:
            for number in range(count):
                names.append(f"{_PREFIX}{os.getpid()}-{next(_numbers)}")
                devices.append(_make(names[-1], number))
            yield cls(names, devices)
        finally:
            for device in devices:
                os.close(device)
            _remove(names)

    def within(self, number: int) -> tuple[str, ...]:
        """Return the command line before which a command runs on host `number`."""
        return within(self.names[number])


def within(name: str) -> tuple[str, ...]:
    """Return the start of a command line by which a command runs in the namespace `name`."""
    return ("ip", "netns", "exec", name)


def address(number: int) -> str:
    """Return the IPv4 address of host `number`."""
    return f"10.77.{(number + 1) >> 8}.{(number + 1) & 255}"


def check() -> None:
    """Check that this machine can have hosts.

    Raises:
        UserError: this machine cannot; it says why.
    """
    if os.geteuid() != 0:
        raise UserError("an emulated network needs root (network namespaces): run it with sudo")
    if not Path(DEVICE).exists():
        raise UserError(f"an emulated network needs {DEVICE}, which this machine lacks: load the kernel's tun module")


def _make(name: str, number: int) -> int:
    _run("ip", "netns", "add", name)
    tun = name.replace(_PREFIX, "tun")[:15]
    device = open_tun(tun)
    _run("ip", "link", "set", tun, "netns", name)
    for command in (
        f"link set {tun} name eth0",
        f"address add {address(number)}/16 dev eth0",
        f"link set eth0 mtu {_MTU} txqueuelen {_QUEUE_PACKETS} up",
        "link set lo up",
    ):
        _run("ip", "-n", name, *command.split())
    _run(*within(name), "sysctl", "-qw", *_SETTINGS)
    return device


def _allow() -> None:
    """Permit namespaces to choose the congestion control: some kernels allow them the machine's own alone."""
    allowed = _ALLOWED.read_text().split()
    if _CONGESTION_CONTROL not in allowed:
        _run("sysctl", "-qw", f"net.ipv4.tcp_allowed_congestion_control={' '.join([*allowed, _CONGESTION_CONTROL])}")


def _sweep(namespaces: Path = _NAMESPACES) -> None:
    """Delete what killed processes have left."""
    names = [path.name for path in namespaces.iterdir()] if namespaces.is_dir() else []
    owners = {name: match[1] for name in names if (match := _NAME.match(name)) is not None}
    _remove([name for name, owner in owners.items() if not Path(f"/proc/{owner}").exists()])


def _remove(names: Sequence[str], grace_seconds: float = _GRACE_SECONDS) -> None:
    """Delete namespaces, and end what runs in them before: without a name nobody would find it again."""
    running = _running(names)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in itertools.chain.from_iterable(running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + grace_seconds
        while running and time.monotonic() < end:
            time.sleep(_ENDED_LOOK_SECONDS)
            running = _running(running)
    for name in names:
        _run("ip", "netns", "delete", name, check=False)


def _running(names: Iterable[str]) -> dict[str, list[int]]:
    """Find the processes in those namespaces that have any, by namespace."""
    found = {name: _run("ip", "netns", "pids", name, check=False).split() for name in names}
    return {name: [int(pid) for pid in pids] for name, pids in found.items() if pids}


def _run(*command: str, check: bool = True) -> str:
    """Run a command and return what it writes to its standard output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"cannot run {command[0]}: {error}; install iproute2 and procps") from None
    if check and done.returncode:
        raise UserError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
