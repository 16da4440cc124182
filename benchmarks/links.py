"""A link between two network namespaces of this machine, as slow as is asked for. Needs Linux, root, `ip` and `tc`.

Each namespace has two interfaces: one to a bridge, on which this machine's own namespace is reached at full rate, and
one to the other namespace, which a token bucket (`tc tbf`) limits in each direction by itself.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from benchmarks.runs import uninterrupted
from dtfm_protocol.errors import UserError

TICKS = 250
"""A second, at least: what a bucket must hold for so long is its least size."""
LEAST_BURST = 16 << 10
QUEUE_MS = 100
"""How long a packet may wait in a bucket's queue."""
DEVICE = "direct"
CHECK_SECONDS = 1.5
_PORT = 7900
_PIECE = 1 << 16
_LARGEST_CHECK = 256 << 20
ROOT = Path(__file__).parents[1]


class Link:
    """Two namespaces, 0 and 1, and what joins them. Create it with `open`."""

    def __init__(self) -> None:
        number = os.getpid() % 128  # 198.18.0.0/15 is for benchmarks (RFC 2544): two at a time take different parts
        self._bridge = f"dtfm{os.getpid()}"
        self.namespaces = (f"{self._bridge}a", f"{self._bridge}b")
        self._control, self._direct = f"198.18.{number}", f"198.19.{number}"
        self.hub = f"{self._control}.1"
        """This machine's address that both namespaces reach."""
        self.addresses = (f"{self._direct}.1", f"{self._direct}.2")
        """Each namespace's address that only the other one reaches, over the limited link."""

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Self]:
        """Make them; on leaving everything is removed, with whatever runs in the namespaces.

        Raises:
            UserError: this needs root, or a tool or a kernel feature that is missing.
        """
        missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if sys.platform != "linux" or os.geteuid() != 0 or missing:
            lacks = f"; {' and '.join(missing)} not found" if missing else ""
            raise UserError(f"emulating a link needs Linux, root, ip and tc{lacks}")
        link = cls()
        try:
            link._build()
            yield link
        finally:
            with uninterrupted():
                link._remove()

    def _build(self) -> None:
        _tool("ip", "link", "add", self._bridge, "type", "bridge")
        _tool("ip", "address", "add", f"{self.hub}/24", "dev", self._bridge)
        _tool("ip", "link", "set", self._bridge, "up")
        first, second = self.namespaces
        for number, name in enumerate(self.namespaces):
            here = f"{self._bridge}v{number}"
            _tool("ip", "netns", "add", name)
            _tool("ip", "link", "add", here, "type", "veth", "peer", "name", "hub", "netns", name)
            _tool("ip", "link", "set", here, "master", self._bridge, "up")
            _tool("ip", "-n", name, "address", "add", f"{self._control}.{number + 2}/24", "dev", "hub")
        _tool("ip", "-n", first, "link", "add", "name", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", second)
        for name, address in zip(self.namespaces, self.addresses, strict=True):
            _tool("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            for device in ("lo", "hub", DEVICE):
                _tool("ip", "-n", name, "link", "set", device, "up")

    def _remove(self) -> None:
        for name in self.namespaces:
            for pid in _tool("ip", "netns", "pids", name, strict=False).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _tool("ip", "netns", "delete", name, strict=False)
        _tool("ip", "link", "delete", self._bridge, strict=False)

    def limit(self, rate: float | None) -> None:
        """Limit each direction to `rate` bits a second, Ethernet's headers included; None lifts the limit."""
        for name in self.namespaces:
            if rate is None:
                _tool("tc", "-n", name, "qdisc", "delete", "dev", DEVICE, "root", strict=False)
                continue
            burst = max(LEAST_BURST, int(rate / 8 / TICKS))
            _tool(
                "tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root",
                "tbf", "rate", f"{rate:.0f}bit", "burst", f"{burst}b", "latency", f"{QUEUE_MS}ms",
            )  # fmt: skip

    def inside(self, number: int) -> list[str]:
        """What runs a command in a namespace."""
        return ["ip", "netns", "exec", self.namespaces[number]]

    def sent_bytes(self) -> tuple[int, int]:
        """What each namespace has sent the other since the link was made, in bytes on the wire."""
        found = [
            json.loads(_tool("ip", "-n", name, "-json", "-s", "link", "show", "dev", DEVICE))
            for name in self.namespaces
        ]
        first, second = (int(devices[0]["stats64"]["tx"]["bytes"]) for devices in found)
        return first, second

    def check(self, rate: float | None) -> tuple[float, float]:
        """Bits a second of one plain TCP transfer in each direction, headers left out."""
        size = _LARGEST_CHECK if rate is None else min(_LARGEST_CHECK, int(rate / 8 * CHECK_SECONDS))
        there, back = self._transfer(0, 1, size), self._transfer(1, 0, size)
        return there, back

    def _transfer(self, sender: int, receiver: int, size: int) -> float:
        program = [sys.executable, "-m", "benchmarks.links"]
        address = self.addresses[receiver]
        receiving = subprocess.Popen(
            [*self.inside(receiver), *program, "receive", address, str(size)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        try:
            assert receiving.stdout is not None
            receiving.stdout.readline()  # it listens
            subprocess.run([*self.inside(sender), *program, "send", address, str(size)], check=True, cwd=ROOT)
            return float(receiving.stdout.readline())
        finally:
            receiving.kill()
            receiving.communicate()


def _tool(*command: str, strict: bool = True) -> str:
    """Run `ip` or `tc`; what it says.

    Raises:
        UserError: it fails, where that is not to be passed over.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if strict and done.returncode != 0:
        raise UserError(f"emulating a link: {' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def _receive(address: str, size: int) -> None:
    """Take `size` bytes, and say how fast they came: of the last three quarters, when the stream has found its rate."""
    with socket.create_server((address, _PORT)) as listener:
        print("listening", flush=True)
        with listener.accept()[0] as connection:
            received = counted = 0
            begun = time.monotonic()
            while piece := connection.recv(_PIECE):
                received += len(piece)
                if not counted and received >= size // 4:
                    counted, begun = received, time.monotonic()
    print(8 * (received - counted) / (time.monotonic() - begun), flush=True)


def _send(address: str, size: int) -> None:
    with socket.create_connection((address, _PORT)) as connection:
        piece = bytes(_PIECE)
        for start in range(0, size, _PIECE):
            connection.sendall(piece[: size - start])


if __name__ == "__main__":
    {"receive": _receive, "send": _send}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
