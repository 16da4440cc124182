"""Check whether the ports at which a node is to listen are free."""

import errno
import socket
from dataclasses import dataclass

from dtfm_node.doctor.findings import Finding, bad, good, warn

GROUP = "this machine"


@dataclass(frozen=True)
class Port:
    """One port, and why it cannot be listened at (an errno; 0: it can)."""

    listen: str
    number: int
    fault: int = 0


def look(listen: str, port: int) -> list[Port]:
    """Try to listen at `port`, for libp2p, and at the one after it, for direct streams (0: any free port)."""
    return [_try(listen, number) for number in ((port, port + 1) if port else (0,)) if number < 65536]


def _try(listen: str, number: int) -> Port:
    try:
        with socket.create_server((listen, number), family=socket.AF_INET6 if ":" in listen else socket.AF_INET):
            return Port(listen, number)
    except OSError as error:  # a gaierror's number is none of errno's
        return Port(listen, number, errno.EADDRNOTAVAIL if isinstance(error, socket.gaierror) else error.errno or -1)


def judge(ports: list[Port]) -> list[Finding]:
    """Judge the ports. The second is a convenience: if it is taken, a node takes any other."""
    first, *others = ports
    found = [_judge(first)]
    if not first.fault and any(port.fault for port in others):
        number = others[0].number
        found.append(
            warn(
                GROUP,
                "port",
                f"port {number}, for direct streams, is taken: any other will be used instead",
                f"if a router forwards ports here, choose a --port after which port {number} is free, too",
            )
        )
    return found


def _judge(port: Port) -> Finding:
    if not port.fault:
        where = f"port {port.number}" if port.number else "a free port"
        return good(GROUP, "port", f"a node can listen at {port.listen}, {where}")
    if port.fault == errno.EADDRINUSE:
        return bad(
            GROUP,
            "port",
            f"port {port.number} is taken by another program, perhaps by a node that runs already",
            "stop that program, or choose another --port",
        )
    if port.fault == errno.EACCES:
        return bad(
            GROUP, "port", f"port {port.number} is for the system's administrator only", "choose a --port above 1023"
        )
    return bad(
        GROUP,
        "port",
        f"{port.listen} is no address of this machine",
        "leave --listen away, or give it an address of this machine (where a router has the public one: --announce)",
    )
