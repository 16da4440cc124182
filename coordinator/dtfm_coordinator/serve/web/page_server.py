"""Server of the owner's page: its socket, its bounds, and its end."""

import asyncio
import contextlib
import datetime
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dtfm_coordinator.serve.web.page_access import PageAccess
from dtfm_coordinator.serve.web.page_address import PageAddress, PageOptions
from dtfm_coordinator.serve.web.page_app import EVENTS, PageApp
from dtfm_coordinator.serve.web.page_certificate import page_certificate
from dtfm_coordinator.serve.web.page_links import URL, PageLinks
from dtfm_coordinator.swarm.overview.overview_feed import OverviewFeed
from dtfm_protocol.errors import UserError
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.state_dir import write_atomically

MOST_CONNECTIONS = 150
"""Connections at the same time: three a viewer, as many as may look live. Further ones are closed."""
REQUEST_SECONDS = 10.0
"""Time in which a connection must have sent a request; between requests as well."""
HEADER_BYTES = 16_384
"""Bytes of a request's head."""
LOOK_SECONDS = 1.0
"""How often connections are looked at that send no request."""
ANSWER_SECONDS = 0.5
"""Time that is left to requests that wait for their answer when the page ends."""
GOODBYE_SECONDS = 1


@contextlib.asynccontextmanager
async def page_served(options: PageOptions, feed: OverviewFeed, folder: Path) -> AsyncIterator[None]:
    """Serve the owner's page within the block.

    Args:
        options: where and how.
        feed: the run's overviews.
        folder: the state folder.

    Raises:
        UserError: the port is taken, or a file cannot be read or written.
    """
    with PageServer(options, feed, folder) as server:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.run())
            yield
            serving.cancel()


class PageServer:
    """Server of the owner's page of one run; a context manager that has its port."""

    def __init__(
        self, options: PageOptions, feed: OverviewFeed, folder: Path, *, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        """Take the port.

        Raises:
            UserError: the port is taken, or a file cannot be read or written.
        """
        self._socket = _listening(options.address)
        self._request_seconds = request_seconds
        try:
            address = replace(options.address, port=self._socket.getsockname()[1])
            self._links = PageLinks(folder)
            self._links.keys()
            self.url = address.url(options.announced)
            """URL of the page."""
            write_atomically(folder / URL, f"{self.url}\n")
            app = PageApp(feed, folder, PageAccess(address, options.announced), self._links)
            self._server = _Server(_config(app, options, address, folder))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "PageServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def run(self) -> None:
        """Serve until cancelled, once."""
        log.info("Your page is at %s. `dtfm-coordinator page` prints its links: one to act, one to look.", self.url)
        serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        watching = asyncio.create_task(self._close_silent())
        try:
            await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
            for task in (serving, watching):
                if task.done():
                    task.result()
        finally:
            watching.cancel()
            self._server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    async def _close_silent(self) -> None:
        """Close connections that send no request for too long: each would keep another one from coming."""
        loop, seen = asyncio.get_running_loop(), dict[H11Protocol, float]()
        while True:
            now = loop.time()
            silent = [one for one in self._server.connections if one.cycle is None or one.cycle.response_complete]
            seen = {one: seen.get(one, now) for one in silent}
            for one, since in seen.items():
                if now - since > self._request_seconds:
                    one.transport.abort()
            await asyncio.sleep(min(LOOK_SECONDS, self._request_seconds / 2))


class _Server(uvicorn.Server):
    """Server in an event loop of a program that has signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End live streams at once, which would not go by themselves; what was asked has a moment to be answered."""
        waiting = [one for one in self.connections if one.cycle is not None and not one.cycle.response_complete]
        for one in waiting:
            if one.cycle.scope["path"] == EVENTS:
                one.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=ANSWER_SECONDS)
        for one in self.connections:
            if one in waiting and not one.cycle.response_complete:
                one.cycle.disconnected = True  # else the server prints that there was no answer
                one.transport.abort()
        for task in self.server_state.tasks:
            task.cancel()
        await super().shutdown(sockets)

    @property
    def connections(self) -> list[Any]:
        return list(self.server_state.connections)


class _Protocol(H11Protocol):
    """Connection that is closed at once where there are too many."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()


def _listening(address: PageAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(64)
    except OSError as error:
        made.close()
        raise UserError(
            f"cannot serve the page at {address.host}:{address.port}: {error.strerror}; give --web another port"
        ) from None
    made.setblocking(False)
    return made


def _config(app: PageApp, options: PageOptions, address: PageAddress, folder: Path) -> uvicorn.Config:
    """Return the server's configuration.

    Raises:
        UserError: the certificate cannot be used.
    """
    files: dict[str, Any] = {}
    if not address.is_local:
        certificate, key = options.certificate, options.key or options.certificate
        if certificate is None:
            names = dict.fromkeys(name for name in (options.announced, "localhost", _own(address.host)) if name)
            now = datetime.datetime.now(datetime.UTC)
            certificate, key, shown = page_certificate(folder, tuple(names), now)
            log.info("Your browser will warn of the page's certificate: trust it if its SHA-256 is %s.", shown)
        files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    try:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(REQUEST_SECONDS),
            timeout_graceful_shutdown=GOODBYE_SECONDS,
            h11_max_incomplete_event_size=HEADER_BYTES,
            **files,
        )
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise UserError(f"the page's certificate {files.get('ssl_certfile')} cannot be used: {error}") from None
    return config


def _own(host: str) -> str:
    """Return the address that a certificate can name; "" where it listens on all."""
    return "" if host in {"0.0.0.0", "::"} else host
