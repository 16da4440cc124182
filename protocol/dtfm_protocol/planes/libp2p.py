"""The data plane on libp2p: one daemon (hivemind's `p2pd`) a process, started, watched and ended here."""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")  # its warnings are for its own developers; ours name the cause

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity import Identity, short
from dtfm_protocol.logs import log
from dtfm_protocol.planes.data import Bytes, Handler, Stream, StreamClosed, Unreachable

STARTUP_SECONDS = 20.0
CLOSE_SECONDS = 1.0
SHUTDOWN_SECONDS = 3.0
_CHUNK = 1 << 18
_FOLDER = "dtfm-"
_LOOPBACK = ("127.", "localhost", "::1")


class LibP2PStream:
    """A libp2p stream; the daemon has proven the other end's peer id."""

    def __init__(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer

    async def read(self, size: int) -> Bytes:
        """See `Stream.read`."""
        try:
            if size <= _CHUNK:
                return await self._reader.readexactly(size)
            # In pieces as they come: `readexactly` would let the reader's buffer grow to the whole size.
            buffer = bytearray(size)
            view, filled = memoryview(buffer), 0
            while filled < size:
                piece = await self._reader.read(min(size - filled, _CHUNK))
                if not piece:
                    raise StreamClosed(f"{short(self.peer)} closed the stream")
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
            return buffer
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            raise StreamClosed(f"{short(self.peer)} closed the stream") from None

    async def write(self, *buffers: Bytes) -> None:
        """See `Stream.write`."""
        try:
            for buffer in buffers:
                self._writer.write(buffer)
            await self._writer.drain()
        except (ConnectionError, OSError, RuntimeError):
            raise StreamClosed(f"{short(self.peer)} closed the stream") from None

    async def close(self) -> None:
        """See `Stream.close`."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()  # the other side does not read: what is still buffered is lost on it
        except asyncio.CancelledError:
            self._writer.transport.abort()
            raise
        except (ConnectionError, OSError):
            pass


class LibP2PDataPlane:
    """A peer of the libp2p network. Create it with `running`."""

    def __init__(
        self,
        p2p: Any,
        announce: tuple[str, ...],
        name_service: Callable[[str], str],
        daemon: asyncio.subprocess.Process,
    ) -> None:
        self.p2p = p2p
        self._daemon = daemon
        self.peer_id = str(p2p.peer_id)
        self._name_service = name_service
        self._announce = announce
        self._handlers: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        identity: Identity,
        name_service: Callable[[str], str],
        *,
        listen: str = "0.0.0.0",
        port: int = 0,
        announce: str | None = None,
        bootstrap: tuple[str, ...] = (),
    ) -> AsyncIterator["LibP2PDataPlane"]:
        """Start a daemon with `identity`, listening on `listen`:`port`; end it, and its sockets, on leaving.

        Args:
            name_service: the libp2p protocol of a service; only members of the swarm know it.
            announce: host or HOST:PORT at which others reach this peer, e.g. a forwarded port.
            bootstrap: multiaddresses of peers to enter the network by.

        Raises:
            UserError: the daemon does not start, with what it said.
        """
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))  # short: a Unix socket's path has at most 108 bytes
        holder = os.open(folder / "lock.new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(holder, fcntl.LOCK_EX)
        (folder / "lock.new").rename(folder / "lock")  # from now on another process's `_sweep` may look at it
        try:
            key = folder / "key"
            key.touch(mode=0o600)
            key.write_bytes(identity.to_libp2p())
            at = announced(announce, port, identity.peer_id)
            daemon = await _start(_arguments(folder, key, listen, port, at, bootstrap))
            drain: asyncio.Task[None] | None = None
            p2p: Any = None
            try:
                await _ready(daemon)
                drain = asyncio.create_task(_drain(daemon))
                client: Any = type("P2PInFolder", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{folder}/"})
                p2p = await client.replicate(Multiaddr(f"/unix{folder}/daemon.sock"))
                plane = cls(p2p, at, name_service, daemon)
                try:
                    yield plane
                finally:
                    for task in plane._handlers:
                        task.cancel()
            finally:
                if p2p is not None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(SHUTDOWN_SECONDS):
                            await p2p.shutdown()
                if daemon.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        daemon.terminate()
                    await daemon.wait()
                if drain is not None:
                    await drain
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(holder)

    async def watch(self) -> None:
        """Wait, until cancelled, for what must not happen.

        Raises:
            UserError: the libp2p daemon has ended.
        """
        code = await self._daemon.wait()
        raise UserError(f"the libp2p daemon of this process has ended (code {code}): start this program again")

    async def addresses(self) -> tuple[str, ...]:
        """See `DataPlane.addresses`."""
        if self._announce:
            return self._announce
        found = [str(address) for address in await self.p2p.get_visible_maddrs(latest=True)]
        outside = [address for address in found if "/127.0.0.1/" not in address and "/::1/" not in address]
        return tuple((outside or found)[:16])

    async def introduce(self, peer: str, addresses: tuple[str, ...]) -> None:
        """See `DataPlane.introduce`."""
        try:
            where = [Multiaddr(address).decapsulate(Multiaddr(f"/p2p/{peer}")) for address in addresses]
            await self.p2p._client.connect(PeerID.from_base58(peer), where)
        except (P2PDaemonError, ValueError, OSError) as error:
            raise Unreachable(f"{short(peer)} cannot be reached at {', '.join(addresses)}: {error}") from None

    async def open(self, peer: str, service: str) -> LibP2PStream:
        """See `DataPlane.open`."""
        try:
            _, reader, writer = await self.p2p.call_binary_stream_handler(
                PeerID.from_base58(peer), self._name_service(service)
            )
        except (P2PDaemonError, ValueError, OSError, asyncio.IncompleteReadError) as error:
            raise Unreachable(f"{short(peer)} cannot be reached: {error}") from None
        return LibP2PStream(peer, reader, writer)

    async def serve(self, service: str, handler: Handler) -> None:
        """See `DataPlane.serve`."""

        async def take(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                self._handlers.add(task)
                task.add_done_callback(self._handlers.discard)
            await answer(handler, LibP2PStream(str(info.peer_id), reader, writer))

        await self.p2p.add_binary_stream_handler(self._name_service(service), take)


async def answer(handler: Handler, stream: Stream) -> None:
    """Let `handler` have a stream that a peer has opened; nothing that goes wrong with it goes further."""
    try:
        await handler(stream)
    except StreamClosed:
        pass
    except Refused as error:
        log.warning("refused a stream of %s: %s", short(stream.peer), error)
    except asyncio.CancelledError:
        pass  # the plane is closing, and nobody awaits this task
    except Exception:  # noqa: BLE001 - a bug in one handler must not end the daemon; it is logged whole
        log.exception("a stream of %s failed here", short(stream.peer))
    finally:
        await stream.close()


def _sweep() -> None:
    """Take away the folders of processes that were killed: nobody holds their locks any more."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/lock"):
        with contextlib.suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)


def _arguments(
    folder: Path, key: Path, listen: str, port: int, announced: tuple[str, ...], bootstrap: tuple[str, ...]
) -> list[str]:
    """The daemon's command line."""
    try:
        listen = listen if ":" in listen else socket.gethostbyname(listen)
    except OSError:
        raise UserError(f"--listen {listen}: no such address on this machine") from None
    family = "ip6" if ":" in listen else "ip4"
    local = listen.startswith(_LOOPBACK)
    arguments = [
        str(files("hivemind.hivemind_cli") / "p2pd"),
        f"-listen=/unix{folder}/daemon.sock",
        f"-id={key}",
        f"-hostAddrs=/{family}/{listen}/tcp/{port}",
        "-dhtServer=1",
        "-connManager=1",
        f"-natPortMap={0 if local else 1}",
        f"-autonat={0 if local else 1}",
        "-relay=1",
        "-tls=1",
        f"-idleTimeout={STARTUP_SECONDS:.0f}s",
    ]
    if announced:
        arguments.append(f"-announceAddrs={','.join(announced)}")
    if bootstrap:
        arguments += ["-b=1", f"-bootstrapPeers={','.join(bootstrap)}"]
    return arguments


def announced_port(announce: str | None) -> int:
    """The port of an `announce` of the form HOST:PORT, else 0."""
    host, _, port = (announce or "").rpartition(":")
    return int(port) if port.isdigit() and host and ":" not in host else 0


def announced(announce: str | None, port: int, peer_id: str) -> tuple[str, ...]:
    """`announce` ("host" or "host:port") as multiaddresses of `peer_id`; none where it is None.

    Raises:
        UserError: it is not of that form.
    """
    if announce is None:
        return ()
    given = announced_port(announce)
    host, number = announce.removesuffix(f":{given}") if given else announce, given or port
    if not 0 < number < 65536 or not host:
        raise UserError(f"--announce {announce}: say the port too, as HOST:PORT, or listen on a fixed one")
    kind = "ip6" if ":" in host else "ip4" if host.replace(".", "").isdigit() else "dns4"
    return (f"/{kind}/{host}/tcp/{number}/p2p/{peer_id}",)


async def _start(arguments: list[str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "GOLOG_LOG_LEVEL": "error", "GOLOG_LOG_FMT": "json"},
            # Ctrl+C in a terminal goes to the whole group; the daemon must outlive it until this side has said goodbye.
            start_new_session=True,
            preexec_fn=end_with_parent(signal.SIGKILL),
        )
    except OSError as error:
        raise UserError(f"cannot start the libp2p daemon that hivemind ships: {error}") from None


async def _ready(daemon: asyncio.subprocess.Process) -> None:
    """Wait until the daemon says its peer id."""
    assert daemon.stdout is not None
    said = "nothing"
    try:
        async with asyncio.timeout(STARTUP_SECONDS):
            while line := await daemon.stdout.readline():
                said = line.decode(errors="replace").strip()
                if said.startswith("Peer ID:"):
                    return
    except TimeoutError:
        pass
    raise UserError(f"the libp2p daemon did not start; it said: {said[:300]}")


async def _drain(daemon: asyncio.subprocess.Process) -> None:
    """Read what the daemon prints, so that it never blocks on a full pipe."""
    assert daemon.stdout is not None
    while line := await daemon.stdout.readline():
        log.debug("p2pd: %s", line.decode(errors="replace").strip())


def end_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """For `preexec_fn`: have the kernel send the child `number` when its parent dies, even by kill -9. Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)  # loaded here: after the fork nothing may import or allocate much
    set_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>

    def ask() -> None:
        libc.prctl(set_death_signal, int(number))

    return ask
