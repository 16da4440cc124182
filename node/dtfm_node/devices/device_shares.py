"""Shares of what one person has allowed, for each of several devices. Pure.

What belongs to the machine (its line, its disk, its memory, its threads) is divided; what belongs to a device (a GPU's
memory, its share of time) each device has for itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dtfm_node.limits.traffic_rate import LEAST
from dtfm_protocol.bounds import nickname
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.quantities import GB

PORTS = 2
"""Ports that a node listens on, one after the other."""
MOST_PORT = 65535


@dataclass(frozen=True)
class Allowed:
    """What the person allows all devices together."""

    threads: int
    memory_gb: float | None = None
    """GB of memory, of whatever device; None: as much as is free."""
    memory_free: int = 0
    """Bytes of the machine's memory that are free."""
    disk_bytes: int = 0
    """Bytes that all nodes keep on disk at most."""
    upload: float = math.inf
    """Bytes a second."""
    download: float = math.inf
    """Bytes a second."""
    port: int = 0
    """Port of the first device's node; 0: any."""
    announce: str | None = None
    """HOST or HOST:PORT at which the first device's node is reached."""
    name: str = ""
    others: Mapping[str, str | bool] = field(default_factory=dict)
    """Options that each node gets as they are, by name: a value, or whether a flag is set."""


def arguments_of(allowed: Allowed, devices: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the options of `dtfm-node join` for the node of each device.

    Raises:
        UserError: what is divided is too little for so many, or there are too few ports.
    """
    return [tuple(_options(allowed, devices, number)) for number in range(len(devices))]


def _options(allowed: Allowed, devices: Sequence[str], number: int) -> list[str]:
    count, device = len(devices), devices[number]
    options = [f"--device={device}", f"--threads={max(1, allowed.threads // count)}"]
    memory = _memory_gb(allowed, devices, device)
    options += [] if memory is None else [f"--memory={memory:.6g}"]
    options.append(f"--disk={max(1, allowed.disk_bytes) / count / GB:.9g}")
    for option, rate in (("--upload", allowed.upload), ("--download", allowed.download)):
        if not math.isinf(rate):
            options.append(f"{option}={_kilobits(rate / count, option, count)}kbit")
    options += _ports(allowed, number)
    if allowed.name:
        last = f" {number + 1}"
        options.append(f"--name={nickname(allowed.name[: 32 - len(last)] + last)}")
    for name, value in allowed.others.items():
        options += ([f"--{name}"] if value else []) if isinstance(value, bool) else [f"--{name}={value}"]
    return options


def _memory_gb(allowed: Allowed, devices: Sequence[str], device: str) -> float | None:
    """Return the GB that a device's node offers; None: all that its GPU has free."""
    if allowed.memory_gb is not None:
        return allowed.memory_gb / len(devices)
    sharing = sum(not one.startswith("cuda") for one in devices)
    return None if device.startswith("cuda") or sharing == 1 else allowed.memory_free / sharing / GB


def _kilobits(rate: float, option: str, count: int) -> int:
    if rate < LEAST:
        raise UserError(
            f"{option}: {count} devices share it, and none can take part with less than 100kbit; allow more, or name "
            "fewer devices"
        )
    return int(rate * 8 / 1e3)


def _ports(allowed: Allowed, number: int) -> list[str]:
    """Return the options for the ports of a device's node: its own, after those of the devices before it."""
    host, colon, announced = (allowed.announce or "").rpartition(":")
    if colon and announced.isdecimal():
        options = [f"--announce={host}:{_port(int(announced), number)}"]
    else:
        options = [f"--announce={allowed.announce}"] if allowed.announce else []
    return [*options, f"--port={_port(allowed.port, number)}"] if allowed.port else options


def _port(first: int, number: int) -> int:
    port = first + PORTS * number
    if port + PORTS - 1 > MOST_PORT:
        raise UserError(f"the ports from {first} on do not suffice for a node on each device; choose lower ones")
    return port
