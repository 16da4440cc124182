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
    broker = Broker(
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
        # amqtt cancels each reader once and waits for it: where the reader misses that, without end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BROKER_SHUTDOWN_SECONDS):
                await broker.shutdown()
