"""Homes behind NAT on one machine: a small internet of network namespaces, for root on Linux.

The internet is a bridge. At it are one open host and a router for each home; behind each router is one host with a
private address. Routers translate addresses and let in what belongs to connections from inside, as those in homes do,
and say nothing to anything else. Addresses look public, for libp2p treats private ones in its own way.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")
Kind = Literal["cone", "symmetric"]
"""A router's: "cone" gives a port outside for each port inside, whoever is talked to; "symmetric" another one for each
connection, so that nobody else can know it: there holes cannot be punched."""

_PREFIX = "dtfm-home"
_NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET in <sched.h>
_OPEN = "11.0.0.1"


def why_not() -> str | None:
    """Why there can be no homes on this machine; None: there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces take root"
    missing = [tool for tool in ("ip", "iptables", "sysctl") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    try:
        with Homes("symmetric"):
            return None
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` fails here: {error.stderr.strip()}"


class Host:
    """A machine: a network namespace and an event loop whose thread is in it."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace = namespace
        self.address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name=namespace, daemon=True)
        self._thread.start()

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs a program on this machine."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in this machine's event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    @contextlib.asynccontextmanager
    async def holding(self, manager: contextlib.AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """`manager`, entered and left by one task in this machine's event loop."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        here = asyncio.get_running_loop()
        done = asyncio.Event()  # belongs to the other loop from its first use on

        async def hold() -> None:
            async with manager as value:
                here.call_soon_threadsafe(entered.set_result, value)
                await done.wait()

        held = asyncio.run_coroutine_threadsafe(hold(), self._loop)
        ended = asyncio.wrap_future(held)
        try:
            either: set[asyncio.Future[Any]] = {entered, ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not entered.done():
                await ended  # raises what went wrong
            yield entered.result()
        finally:
            self._loop.call_soon_threadsafe(done.set)
            await ended

    def end(self) -> None:
        """End the event loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _live(self) -> None:
        descriptor = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NETWORK_NAMESPACE):
                raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {self.namespace}")
        finally:
            os.close(descriptor)
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class Homes:
    """One open host, and a host behind each of some routers; gone when the block is left.

    Raises:
        CalledProcessError: the machine does not allow it; see `why_not`.
    """

    _numbers = itertools.count()

    def __init__(self, *kinds: Kind) -> None:
        self._kinds = kinds
        self._name = f"{_PREFIX}-{os.getpid()}-{next(self._numbers)}"
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        _sweep()
        try:
            _run("ip", "netns", "add", self._name)
            self._ip("link", "add", "internet", "type", "bridge")
            self._ip("link", "set", "internet", "up")
            self._add("open")
            self._attach("open", _OPEN)
            self._hosts.append(Host(f"{self._name}-open", _OPEN))
            for number, kind in enumerate(self._kinds, 1):
                self._build(number, kind)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.end()
        _remove(name for name in _namespaces() if name == self._name or name.startswith(f"{self._name}-"))

    @property
    def open(self) -> Host:
        """The host that everybody can connect to."""
        return self._hosts[0]

    @property
    def inside(self) -> tuple[Host, ...]:
        """The hosts at home."""
        return tuple(self._hosts[1:])

    def router_address(self, host: Host) -> str:
        """Where the connections of a host at home seem to come from."""
        return f"11.0.0.{10 + self._hosts.index(host)}"

    def forward(self, host: Host, outside: int, inside: int) -> None:
        """Have a home's router pass connections to its port `outside` on to port `inside` of the host."""
        router = f"r{self._hosts.index(host)}"
        to = f"{host.address}:{inside}"
        match = ("-p", "tcp", "--dport")
        self._iptables(
            router, "-t", "nat", "-A", "PREROUTING", "-i", "wan", *match, f"{outside}", "-j", "DNAT", "--to", to
        )
        self._iptables(router, "-A", "FORWARD", "-i", "wan", "-d", host.address, *match, f"{inside}", "-j", "ACCEPT")

    def _build(self, number: int, kind: Kind) -> None:
        """A router and the host behind it."""
        router, host, address = f"r{number}", f"h{number}", f"192.168.{number}.2"
        self._add(router)
        self._attach(router, f"11.0.0.{10 + number}")
        self._add(host)
        self._ip(
            "link", "add", "lan", "type", "veth", "peer", "name", "eth0", "netns", f"{self._name}-{host}", on=router
        )
        for machine, interface, own in ((router, "lan", f"192.168.{number}.1"), (host, "eth0", address)):
            self._ip("addr", "add", f"{own}/24", "dev", interface, on=machine)
            self._ip("link", "set", interface, "up", on=machine)
        self._ip("route", "add", "default", "via", f"192.168.{number}.1", on=host)
        _run("ip", "netns", "exec", f"{self._name}-{router}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        random = ("--random-fully",) if kind == "symmetric" else ()
        self._iptables(router, "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE", *random)
        for chain in ("FORWARD", "INPUT"):
            self._iptables(router, "-P", chain, "DROP")
            self._iptables(router, "-A", chain, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
            self._iptables(router, "-A", chain, "-i", "lan", "-j", "ACCEPT")
        self._hosts.append(Host(f"{self._name}-{host}", address))

    def _add(self, machine: str) -> None:
        _run("ip", "netns", "add", f"{self._name}-{machine}")
        self._ip("link", "set", "lo", "up", on=machine)

    def _attach(self, machine: str, address: str) -> None:
        """Connect a machine to the internet."""
        self._ip("link", "add", machine, "type", "veth", "peer", "name", "wan", "netns", f"{self._name}-{machine}")
        self._ip("link", "set", machine, "master", "internet", "up")
        self._ip("addr", "add", f"{address}/24", "dev", "wan", on=machine)
        self._ip("link", "set", "wan", "up", on=machine)

    def _ip(self, *arguments: str, on: str | None = None) -> None:
        _run("ip", "-n", self._name if on is None else f"{self._name}-{on}", *arguments)

    def _iptables(self, machine: str, *arguments: str) -> None:
        _run("ip", "netns", "exec", f"{self._name}-{machine}", "iptables", "-w", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]


def _remove(names: Iterator[str]) -> None:
    for name in names:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "netns", "del", name)


def _sweep() -> None:
    """Take away what processes have left that were killed."""
    ours = (name for name in _namespaces() if name.startswith(f"{_PREFIX}-"))
    _remove(name for name in ours if not os.path.exists(f"/proc/{name.removeprefix(_PREFIX).split('-')[1]}"))
