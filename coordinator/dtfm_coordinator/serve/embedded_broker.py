"""Embedded MQTT broker (amqtt), open to the swarm's members only."""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from amqtt.broker import Broker
from amqtt.plugins.base import BaseAuthPlugin

from dtfm_coordinator.serve.compat_amqtt import steady_subscriptions

USERNAME = "swarm"
BROKER_SHUTDOWN_SECONDS = 2.0


class EndingBroker(Broker):  # type: ignore[misc]
    """A broker whose connections end with it.

    amqtt 0.12 ends those that it knows, and only then stops listening: who connects meanwhile, as members do that have
    just lost it, would stay connected to a broker that hands on nothing any more.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._connections: set[asyncio.StreamWriter] = set()
        self._is_over = False

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """See amqtt."""
        if self._is_over:
            writer.transport.abort()
            return
        self._connections.add(writer)
        try:
            await super().stream_connected(reader, writer, listener_name)
        finally:
            self._connections.discard(writer)

    async def end(self) -> None:
        """Shut down, and let nobody stay connected."""
        self._is_over = True
        try:
            # amqtt cancels each reader once and waits for it: where the reader misses that, without end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BROKER_SHUTDOWN_SECONDS):
                    await self.shutdown()
        finally:
            for writer in self._connections:
                writer.transport.abort()


class MembersOnly(BaseAuthPlugin):  # type: ignore[misc]
    """Authentication of MQTT clients by the swarm's password. What members say is checked by signature, not here."""

    async def authenticate(self, *, session: Any) -> bool:
        """Whether the client of `session` knows the password; called by amqtt."""
        given = f"{session.username or ''}:{session.password or ''}"
        return hmac.compare_digest(given.encode(), f"{USERNAME}:{self.config.password}".encode())

    @dataclass
    class Config:
        """Password as it is set in the broker's configuration."""

        password: str = ""


@contextlib.asynccontextmanager
async def embedded(host: str, port: int, password: str) -> AsyncIterator[None]:
    """Run a broker on `host`:`port` until the block is left."""
    # amqtt reports every client that vanishes as an error; who is gone is the last will's to tell.
    for name in ("amqtt", "transitions"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    broker = EndingBroker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
            "plugins": {f"{__name__}.{MembersOnly.__name__}": {"password": password}},
        },
        loop=asyncio.get_running_loop(),
    )
    steady_subscriptions(broker)
    await broker.start()
    try:
        yield
    finally:
        await broker.end()
