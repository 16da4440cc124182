"""Endpoints of a coordinator: the ports at which it listens, and the addresses under which it is announced."""

import contextlib
import json
import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from dtfm_protocol.errors import UserError
from dtfm_protocol.process.state_dir import write_atomically

LOOPBACK = "127.0.0.1"
LASTING = range(20_000, 32_768)
"""Ports that no system gives to an outgoing connection of its own accord (Linux begins at 32,768, others at 49,152)."""
TRIES = 16
"""How many of these are tried."""


class Wishes(Protocol):
    """Options of the owner that decide the addresses."""

    @property
    def listen(self) -> str:
        """IP address to listen on."""

    @property
    def port(self) -> int:
        """Port of the entrance; the data plane takes the next one. 0: any free ones, the same after a restart."""

    @property
    def announce(self) -> str | None:
        """Host name or address at which others reach this machine; None: its own address."""

    @property
    def broker(self) -> str:
        """Word "embedded", or an external broker's address."""


@dataclass(frozen=True)
class Endpoints:
    """Ports in use, and the addresses under which they are announced."""

    broker: int
    data: int
    announced_broker: str
    announced_data: str | None

    @staticmethod
    def check(wishes: Wishes) -> None:
        """Check that the ports that are wished for are free.

        Raises:
            UserError: one is taken, or the address is not this machine's.
        """
        for port in (wishes.port, wishes.port + 1) if wishes.port else ():
            _check_free(wishes.listen, port)

    @classmethod
    def choose(cls, folder: Path, wishes: Wishes) -> Self:
        """Decide the ports, and check that they are free.

        Raises:
            UserError: a port is taken, or the address is not this machine's.
        """
        if wishes.announce and (":" in wishes.announce.strip("[]") and wishes.announce.count(":") == 1):
            raise UserError(f"--announce {wishes.announce}: name the host only; its ports are --port and the next one")
        cls.check(wishes)
        ports = (wishes.port, wishes.port + 1) if wishes.port else _remembered(folder, wishes.listen)
        write_atomically(folder / "ports.json", json.dumps(ports))
        host = wishes.announce or (_own_address() if wishes.listen in {"0.0.0.0", "::"} else wishes.listen)
        data = f"{wishes.announce}:{ports[1]}" if wishes.announce else None
        return cls(ports[0], ports[1], f"{host}:{ports[0]}", data)


def lasting(listen: str) -> socket.socket:
    """Return a socket bound to a free port that stays free, most likely, while nobody listens there, as no outgoing
    connection takes it; to any other where that fails."""
    for port in random.sample(LASTING, min(TRIES, len(LASTING))):
        with contextlib.suppress(UserError):
            return _bound(listen, port, again=False)
    return _bound(listen, 0)


def host_of(address: str) -> str:
    """Return the host of HOST:PORT, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def _remembered(folder: Path, listen: str) -> tuple[int, int]:
    """Return the ports of an earlier start in `folder`, so that invites stay valid, or two free ones."""
    with contextlib.suppress(OSError, ValueError, UserError):
        broker, data = json.loads((folder / "ports.json").read_text(encoding="ascii"))
        for port in (broker, data):
            _check_free(listen, int(port))
        return int(broker), int(data)
    with lasting(listen) as first, lasting(listen) as second:
        return int(first.getsockname()[1]), int(second.getsockname()[1])


def _bound(listen: str, port: int, *, again: bool = True) -> socket.socket:
    """Return a socket bound to a port; `again`: though connections of somebody who listened there may be ending, or
    another one is bound to it and does not listen."""
    opened = socket.socket(socket.AF_INET6 if ":" in listen else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if again:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((listen, port))
    except OSError as error:
        opened.close()
        why = f"cannot listen on {listen} port {port}: {error.strerror}"
        raise UserError(f"{why}; choose another --port (that one and the next are used)") from None
    return opened


def _check_free(listen: str, port: int) -> None:
    if port > 65535:
        raise UserError(f"port {port} does not exist: choose a --port up to 65534")
    _bound(listen, port).close()


def _own_address() -> str:
    """Return the address from which this machine reaches others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: routed like any other, answered by nobody
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
