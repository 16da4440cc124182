"""Look-ups of hosts: names, TCP connections to their addresses, who says no, and which address leads where."""

import asyncio
import contextlib
import socket
import threading
from dataclasses import dataclass

from dtfm_protocol.transport.connect_attempt import ConnectAttempt, attempt_connect
from dtfm_protocol.transport.ip_addresses import kind_of
from dtfm_protocol.transport.multiaddress import tcp_address

RESOLVE_SECONDS = 5.0
VISIT_SECONDS = 4.0
ADDRESS_LIMIT = 4
"""Number of addresses, of each family, that are tried of a name."""

OTHER_PROGRAM = (
    "try another network, as a phone's hotspot, for a proxy or a login page may stand between; if not that, "
    "ask the swarm's owner which program listens there"
)
"""Advice for where another program answers than the one that should."""


@dataclass(frozen=True)
class Host:
    """A host's name and port, and what came of TCP connections to each of its addresses."""

    name: str
    port: int
    attempts: tuple[ConnectAttempt, ...] = ()
    fault: str = ""
    """Reason why the name has no address; "": it has one."""

    @property
    def open(self) -> tuple[ConnectAttempt, ...]:
        """Those of the connections that were taken."""
        return tuple(attempt for attempt in self.attempts if attempt.answer == "open")

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


def host_and_port(address: str) -> tuple[str, int, str] | None:
    """Return host, port and peer id ("": not said) of a multiaddress that leads straight to a TCP port; None of any
    other."""
    at = tcp_address(address)
    return at[:3] if at is not None and not at.further else None


async def visit(host: str, port: int, seconds: float = VISIT_SECONDS) -> Host:
    """Resolve a name and connect to each of its addresses."""
    try:
        addresses = await resolve(host)
    except OSError as error:
        return Host(host, port, fault=str(error))
    return Host(host, port, tuple(await asyncio.gather(*(attempt_connect(ip, port, seconds) for ip in addresses))))


async def resolve(host: str, seconds: float = RESOLVE_SECONDS) -> tuple[str, ...]:
    """Return the addresses of a name, `ADDRESS_LIMIT` of each family at most.

    Raises:
        OSError: it has none, or nobody tells.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[str, ...] | str] = loop.create_future()

    def tell(found: tuple[str, ...] | str) -> None:
        if not answer.done():
            answer.set_result(found)

    def ask() -> None:
        found: tuple[str, ...] | str
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = tuple(dict.fromkeys(str(one[4][0]) for one in answers))
        except socket.gaierror as error:
            found = error.strerror or str(error)
        except (OSError, UnicodeError) as error:
            found = str(error)
        with contextlib.suppress(RuntimeError):  # the program has ended meanwhile
            loop.call_soon_threadsafe(tell, found)

    # Not in the loop's own executor: that one would wait, at the program's end, for a name server that is silent.
    threading.Thread(target=ask, daemon=True).start()
    try:
        async with asyncio.timeout(seconds):
            found = await answer
    except TimeoutError:
        raise OSError(f"no name server has answered for {seconds:g} s") from None
    if isinstance(found, str):
        raise OSError(found)
    old, new = [ip for ip in found if ":" not in ip], [ip for ip in found if ":" in ip]
    return tuple(old[:ADDRESS_LIMIT] + new[:ADDRESS_LIMIT])


def closed_because(host: Host) -> tuple[str, str]:
    """Return what was seen at a host that takes no connection, and one thing to do about it."""
    if host.fault:
        return (
            f"the name {host.name} has no address ({host.fault})",
            f"check this machine's internet connection; if web pages open, ask the swarm's owner whether {host.name} "
            "is right",
        )
    answers = {attempt.answer for attempt in host.attempts}
    kinds = {kind_of(attempt.host) for attempt in host.attempts}
    shown = ", ".join(dict.fromkeys(attempt.host for attempt in host.attempts))
    where = str(host) if shown == host.name else f"{host} ({shown})"
    if kinds == {"loopback"}:
        return (
            f"nothing listens at {where}, which is this machine itself",
            "if the coordinator is to run on this machine, start it; else ask the swarm's owner to run "
            "`dtfm-coordinator serve` with --announce and send the new invite",
        )
    if "refused" in answers:
        return (
            f"the machine at {where} is there and refuses the connection: nothing listens, or a firewall says no",
            "ask the swarm's owner whether the coordinator is running, and on these ports",
        )
    if kinds <= {"private", "carrier", "link-local"}:
        return (
            f"{where} does not answer; it is an address inside a private network, which only machines there reach",
            "join from the coordinator's own network, or ask the swarm's owner to run `dtfm-coordinator serve` with "
            "--announce and send the new invite",
        )
    if answers == {"unreachable"}:
        return (
            f"this machine knows no way to {where} ({host.attempts[0].why if host.attempts else 'no address'})",
            "check this machine's internet connection, VPN included",
        )
    return (
        f"{where} does not answer at all: a firewall drops the packets, or the machine is off",
        f"allow outgoing TCP to port {host.port} in the firewall here (try a phone's hotspot to see whose it is), then "
        "ask the swarm's owner whether the coordinator is on",
    )
