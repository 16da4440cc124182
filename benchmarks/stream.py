"""What a tensor's way from process to process costs: TCP, TCP with TLS, libp2p, and the direct plane's streams.

    python -m benchmarks.stream [--rounds 5] [--megabytes 512] [--out benchmarks/results/stream.md]

Two processes on this machine, on the event loop that the programs use, hold one stream of each kind open. In each round
the sender writes frames (a header and a payload) over one kind after the other, and the receiver reads each payload
into memory of its own. CPU seconds are user and system, over both processes and libp2p's daemons. Ratios are taken
within a round, so that what else the machine did in that round weighs on both sides; all figures are medians.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import platform
import secrets
import ssl
import statistics
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.progress import track

from benchmarks.tables import keep, markdown, show
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import authority_certificate, issue_credential
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.certificates import Trust
from dtfm_protocol.transport.direct_data_plane import DirectDataPlane
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.libp2p_stream import LibP2PStream
from dtfm_protocol.transport.tls_stream import TlsStream
from dtfm_protocol.wire.stream import Stream

LOOPBACK = "127.0.0.1"
SINK = "sink"
SWARM = "0" * 16
FRAMES = (2 << 20, 32 << 20)
"""Bytes of a payload: an activation of a small model, and a part of a gradient."""
KINDS = ("TCP", "TCP + TLS", "libp2p", "direct")
REFERENCE = "TCP + TLS"
_HEADER = struct.Struct("!Q?27x")
"""Payload bytes, and whether the receiver is to acknowledge the frame; as long as a training frame's header."""
_ACKNOWLEDGED = b"a"


@dataclass(frozen=True)
class Contact:
    """What one process tells the other to be reached."""

    peer: str
    addresses: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    """Of TCP, and of TCP with TLS."""


@dataclass(frozen=True)
class Order:
    """One measurement."""

    kind: str
    frame: int
    count: int


@dataclass(frozen=True)
class Measured:
    """One measurement's figures."""

    megabytes_a_second: float
    cpu_seconds_a_gigabyte: float


async def sink(stream: Stream) -> None:
    """Read frames until the stream ends."""
    while True:
        size, last = _HEADER.unpack(await stream.read(_HEADER.size))
        await stream.read(size)
        if last:
            await stream.write(_ACKNOWLEDGED)


def receiver(pipe: Connection, owner: bytes) -> None:
    """Run the process that the frames go to; `owner` is the key that signs both processes' credentials."""
    uvloop.run(_receive(pipe, owner))


async def _receive(pipe: Connection, owner: bytes) -> None:
    identity, admission = _member(owner)
    trust = Trust(identity, admission)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = LibP2PStream("", reader, writer)  # what it does with a pair of asyncio's is what anybody would
        with contextlib.suppress(ConnectionError):
            await sink(stream)
        await stream.close()

    async with _planes(identity, admission) as (libp2p, direct), contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(await asyncio.start_server(take, LOOPBACK, 0, ssl=context))
            for context in (None, trust.server)
        ]
        ports = tuple(server.sockets[0].getsockname()[1] for server in servers)
        await direct.serve(SINK, sink)
        pipe.send(Contact(identity.peer_id, await libp2p.addresses(), ports))
        await asyncio.to_thread(pipe.recv)


def sender(pipe: Connection, owner: bytes) -> None:
    """Run the process that the frames come from; `owner` as for `receiver`."""
    uvloop.run(_send(pipe, owner))


async def _send(pipe: Connection, owner: bytes) -> None:
    identity, admission = _member(owner)
    other: Contact = await asyncio.to_thread(pipe.recv)
    trust = Trust(identity, admission)
    async with _planes(identity, admission) as (libp2p, direct):
        await libp2p.introduce(other.peer, other.addresses)
        streams: dict[str, Stream] = {
            "TCP": await _connect(other.ports[0], None),
            "TCP + TLS": await _connect(other.ports[1], trust.client),
            "libp2p": await libp2p.open(other.peer, SINK),
            "direct": await direct.open(other.peer, SINK),
        }
        assert isinstance(streams["direct"], TlsStream), "the direct stream went over libp2p"
        pipe.send(None)
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(await _pour(streams[order.kind], order))
        for stream in streams.values():
            await stream.close()


async def _pour(stream: Stream, order: Order) -> float:
    """Seconds from the first frame to the last one's acknowledgement."""
    payload = os.urandom(order.frame)
    begun = time.perf_counter()
    for left in reversed(range(order.count)):
        await stream.write(_HEADER.pack(order.frame, left == 0), payload)
    await stream.read(len(_ACKNOWLEDGED))
    return time.perf_counter() - begun


async def _connect(port: int, context: ssl.SSLContext | None) -> Stream:
    return LibP2PStream("", *await asyncio.open_connection(LOOPBACK, port, ssl=context))


def _member(owner: bytes) -> tuple[Identity, Admission]:
    coordinator, identity = Identity(Ed25519PrivateKey.from_private_bytes(owner)), Identity.generate()
    certificate = issue_credential(coordinator, SWARM, identity.peer_id, "0" * 16, time.time() + 86_400)
    return identity, Admission(SWARM, [coordinator.peer_id], certificate, [authority_certificate(coordinator)])


@contextlib.asynccontextmanager
async def _planes(identity: Identity, admission: Admission) -> AsyncIterator[tuple[LibP2PDataPlane, DirectDataPlane]]:
    running = LibP2PDataPlane.running(identity, admission, lambda name: f"/dtfm/benchmark/{name}", listen=LOOPBACK)
    async with running as libp2p, DirectDataPlane.running(libp2p, identity, admission, listen=LOOPBACK) as direct:
        yield libp2p, direct


class Pair:
    """The two processes."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        owner = secrets.token_bytes(32)
        for role in (sender, receiver):
            ours, theirs = context.Pipe()
            process = context.Process(target=role, args=(theirs, owner))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        to_sender, to_receiver = self._pipes
        to_sender.send(to_receiver.recv())
        to_sender.recv()

    def measure(self, order: Order) -> Measured:
        """Carry out one order."""
        before = self._cpu_seconds()
        self._pipes[0].send(order)
        seconds = self._pipes[0].recv()
        sent = order.frame * order.count
        return Measured(sent / seconds / 1e6, (self._cpu_seconds() - before) / sent * 1e9)

    def close(self) -> None:
        """End both."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            with contextlib.suppress(OSError):
                pipe.send(None)
            process.join()

    def _cpu_seconds(self) -> float:
        """User and system time of both processes and of their daemons."""
        roots = [psutil.Process(process.pid) for process in self._processes]
        times = [process.cpu_times() for root in roots for process in (root, *root.children(recursive=True))]
        return sum(each.user + each.system for each in times)


HEADINGS = ("stream", "MB/s", f"x {REFERENCE}", "CPU s a GB", f"x {REFERENCE}")


def rows(rounds: list[dict[str, Measured]]) -> list[tuple[str, ...]]:
    """Medians over the rounds of one frame size, one row a kind."""
    table: list[tuple[str, ...]] = []
    for kind in KINDS:
        speed = [done[kind].megabytes_a_second for done in rounds]
        cpu = [done[kind].cpu_seconds_a_gigabyte for done in rounds]
        faster = [done[kind].megabytes_a_second / done[REFERENCE].megabytes_a_second for done in rounds]
        dearer = [done[kind].cpu_seconds_a_gigabyte / done[REFERENCE].cpu_seconds_a_gigabyte for done in rounds]
        middle = [statistics.median(figures) for figures in (speed, faster, cpu, dearer)]
        table.append((kind, f"{middle[0]:,.0f}", f"{middle[1]:.2f}", f"{middle[2]:.2f}", f"{middle[3]:.2f}"))
    return table


def machine() -> str:
    """What the figures were measured on."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    return (
        f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}, {ssl.OPENSSL_VERSION.partition('  ')[0]}, uvloop {version('uvloop')}, "
        f"hivemind {version('hivemind')}; load average before the run {os.getloadavg()[0]:.1f}."
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512, help="sent over each kind of stream, a round")
    parser.add_argument("--out", type=Path, help="where to keep the tables")
    options = parser.parse_args()
    facts = machine()
    pair = Pair()
    try:
        for kind in KINDS:  # windows open, memory is taken for the first time
            pair.measure(Order(kind, FRAMES[-1], 2))
        results: dict[int, list[dict[str, Measured]]] = {frame: [] for frame in FRAMES}
        turns = [frame for _ in range(options.rounds) for frame in FRAMES]
        for frame in track(turns, description="sending", console=Console(stderr=True), transient=True):
            count = max(1, options.megabytes * 10**6 // frame)
            results[frame].append({kind: pair.measure(Order(kind, frame, count)) for kind in KINDS})
    finally:
        pair.close()
    parts = [f"{facts}\n"]
    for frame, rounds in results.items():
        title = f"Frames of {frame >> 20} MiB over loopback, {options.megabytes} MB a round, {options.rounds} rounds"
        show(title, HEADINGS, rows(rounds))
        parts.append(markdown(title, HEADINGS, rows(rounds)))
    command = f"python -m benchmarks.stream --rounds {options.rounds} --megabytes {options.megabytes}"
    keep(options.out, "Streams", command, parts)


if __name__ == "__main__":
    main()
