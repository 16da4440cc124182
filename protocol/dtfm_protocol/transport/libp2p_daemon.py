"""The libp2p daemon that hivemind ships, as one process: its folder, its command line, its start and its end."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.child_processes import end_with_parent
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.multiaddress import is_local

STARTUP_SECONDS = 20.0
MESSAGE_LIMIT = 1 << 20
"""Bytes of the largest call or answer (`member_calls`). The daemon takes as much memory as soon as anybody says that so
much will come."""
MEMORY_BYTES = 256 << 20
"""Bytes of memory above which the daemon's runtime looks harder for what it can give back."""
_FOLDER = "dtfm-"


@contextlib.asynccontextmanager
async def running(
    identity: Identity, listen: str, port: int, announced: tuple[str, ...], bootstrap: tuple[str, ...]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    """Run a daemon with `identity`, listening on `listen`:`port`; yield it and its folder, of which nothing stays.

    Args:
        announced: multiaddresses at which others reach it.
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
        daemon = await _start(_arguments(folder, key, listen, port, announced, bootstrap))
        drain: asyncio.Task[None] | None = None
        try:
            await _ready(daemon)
            drain = asyncio.create_task(_drain(daemon))
            yield daemon, folder
        finally:
            if daemon.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    daemon.terminate()
                await daemon.wait()
            if drain is not None:
                await drain
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(holder)


def socket_of(folder: Path) -> Path:
    """Return the socket at which the daemon of `folder` takes commands."""
    return folder / "daemon.sock"


def _sweep() -> None:
    """Delete the folders of processes that were killed: nobody holds their locks any more."""
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
    """Return the daemon's command line."""
    try:
        listen = listen if ":" in listen else socket.gethostbyname(listen)
    except OSError:
        raise UserError(f"--listen {listen}: no such address on this machine") from None
    family = "ip6" if ":" in listen else "ip4"
    local = is_local(listen)
    arguments = [
        str(files("hivemind.hivemind_cli") / "p2pd"),
        f"-listen=/unix{socket_of(folder)}",
        f"-id={key}",
        f"-hostAddrs=/{family}/{listen}/tcp/{port}",
        # libp2p's own DHT would tell everybody where members are, and keep what anybody stores: see `whereabouts`.
        "-dhtServer=0",
        "-connManager=0",  # it would end old connections, members', to make room for new ones: see `doorkeeper`
        f"-natPortMap={0 if local else 1}",
        f"-autonat={0 if local else 1}",
        "-relay=1",
        "-relayService=0",  # see `circuit_relay`
        "-tls=1",
        f"-persistentConnMaxMsgSize={MESSAGE_LIMIT}",
        f"-idleTimeout={STARTUP_SECONDS:.0f}s",
    ]
    if announced:
        arguments.append(f"-announceAddrs={','.join(announced)}")
    if bootstrap:
        arguments += ["-b=1", f"-bootstrapPeers={','.join(bootstrap)}"]
    return arguments


async def _start(arguments: list[str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "GOLOG_LOG_LEVEL": "error", "GOLOG_LOG_FMT": "json", "GOMEMLIMIT": str(MEMORY_BYTES)},
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
