"""Strangers that flood ports of this machine with connections and rubbish, and dummies that take the same and do
nothing; each a process of its own, started by `benchmarks.flood`.

    python -m benchmarks.flooder flood --ports 7700,7701 --seconds 40
    python -m benchmarks.flooder dummy --count 2

What the strangers do does not depend on what the other end does, so that their own cost is the same with both.
"""

import argparse
import asyncio
import contextlib
import json
import random
import resource
import socket
import ssl
import struct
from dataclasses import dataclass

PERIOD_SECONDS = 10.0
"""Seconds after which a stranger gives its connection up for a new one."""
RAMP_SECONDS = 2.0
"""Seconds in which all of them connect for the first time."""
SOURCES = 200
"""Loopback addresses from which they come: no limit for one address stops them."""
HOST = "127.0.0.1"
MULTISTREAM = b"\x13/multistream/1.0.0\n\x0b/tls/1.0.0\n"
"""First bytes of whoever wants to speak TLS with a libp2p daemon."""
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Count:
    """What came of a flood."""

    connections: int = 0
    failed: int = 0
    """Connections that did not come about."""
    bytes: int = 0
    cut: int = 0
    """Connections on which not all could be said."""


def client_hello() -> bytes:
    """Return the first record of a TLS 1.3 handshake: the other end answers it with a key exchange and a signature."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def words(size: int, rng: random.Random) -> tuple[bytes, ...]:
    """Return what the kinds of strangers say: nothing, rubbish, and rubbish after half a handshake of either kind."""
    hello, rubbish = client_hello(), rng.randbytes(size)
    return b"", rubbish, (hello + rubbish)[:size], (MULTISTREAM + hello + rubbish)[:size]


async def flood(ports: list[int], connections: int, megabytes: float, seconds: float) -> Count:
    """Keep so many connections to each port, and say so much a minute on them, for so long."""
    count, rng = Count(), random.Random(0)
    talking = connections * 3 // 4
    said = words(int(megabytes * 1e6 / 60 * PERIOD_SECONDS / talking), rng)
    end = asyncio.get_running_loop().time() + seconds
    async with asyncio.TaskGroup() as tasks:
        for port in ports:
            for number in range(connections):
                tasks.create_task(_stranger(port, number / connections, number, said[number % 4], end, count))
    return count


async def _stranger(port: int, share: float, number: int, said: bytes, end: float, count: Count) -> None:
    """Be one stranger, over one connection after the other; `share` of a period is its place in it."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(share * RAMP_SECONDS)
    turn = loop.time() + RAMP_SECONDS + share * PERIOD_SECONDS
    while loop.time() < end:
        await _visit(port, number, said, min(turn, end), count)
        turn += PERIOD_SECONDS


async def _visit(port: int, number: int, said: bytes, until: float, count: Count) -> None:
    """Connect, say it, and hold the connection until then, whatever the other end does."""
    loop, connection = asyncio.get_running_loop(), socket.socket()
    with connection:
        connection.setblocking(False)
        # Its end is a reset, which leaves nothing behind in the kernel.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        try:
            connection.bind((f"127.0.1.{1 + number % SOURCES}", 0))
            async with asyncio.timeout_at(until):
                await loop.sock_connect(connection, (HOST, port))
        except OSError:  # a TimeoutError is an OSError
            count.failed += 1
        else:
            count.connections += 1
            try:
                async with asyncio.timeout_at(until):
                    await loop.sock_sendall(connection, said)
                count.bytes += len(said)
            except OSError:
                count.cut += 1
        await asyncio.sleep(until - loop.time())


async def dummy(count: int) -> None:
    """Listen at so many ports, print them, and take whatever comes, until killed."""
    loop, ports = asyncio.get_running_loop(), list[int]()
    for _ in range(count):
        server = await loop.create_server(_Swallow, HOST, 0, backlog=1024)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


class _Swallow(asyncio.Protocol):
    """A connection of which all is read and dropped."""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    flooding = kinds.add_parser("flood")
    flooding.add_argument("--ports", type=lambda text: [int(port) for port in text.split(",")], required=True)
    flooding.add_argument("--connections", type=int, default=1000, help="at a time, to each port")
    flooding.add_argument("--megabytes", type=float, default=100.0, help="a minute, at each port")
    flooding.add_argument("--seconds", type=float, default=40.0)
    kinds.add_parser("dummy").add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.kind == "dummy":
        asyncio.run(dummy(options.count))
    else:
        found = asyncio.run(flood(options.ports, options.connections, options.megabytes, options.seconds))
        print(json.dumps(vars(found)), flush=True)


if __name__ == "__main__":
    main()
