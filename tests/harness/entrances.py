"""Entrances of coordinators for tests: with an embedded broker, and members that come in."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import aiomqtt

from dtfm_coordinator.serve.embedded_broker import EmbeddedBroker
from dtfm_coordinator.serve.endpoints import lasting
from dtfm_coordinator.serve.entrance import ENTRANCE_LIMITS, Desk, Enrol, Entrance, EntranceLimits, entrance
from dtfm_coordinator.serve.session_gate import BROKER_LIMITS, BrokerLimits
from dtfm_coordinator.serve.topic_rules import TopicRules
from dtfm_protocol.control.mqtt import NO_DELAY, BrokerAddress
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import SWARM, coordinator_of

HOST = "127.0.0.1"


def free_port() -> int:
    """Find a TCP port that is free."""
    with lasting(HOST) as probe:
        return int(probe.getsockname()[1])


async def enrol_nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
    """Enrol nobody."""
    writer.write(b"no")


@contextlib.asynccontextmanager
async def open_entrance(
    owner: Identity,
    *,
    port: int = 0,
    admission: Admission | None = None,
    enrol: Enrol = enrol_nobody,
    rules: TopicRules | None = None,
    limits: EntranceLimits = ENTRANCE_LIMITS,
    broker_limits: BrokerLimits = BROKER_LIMITS,
    desk: Desk | None = None,
) -> AsyncIterator[tuple[Entrance, EmbeddedBroker]]:
    """Open the entrance of `owner` with an embedded broker, for members of `SWARM`."""
    broker = EmbeddedBroker(rules or TopicRules(SWARM, [owner.peer_id]), broker_limits)
    opening = entrance(HOST, port, owner, admission or coordinator_of(owner), enrol, broker, limits, desk)
    async with opening as opened:
        yield opened, broker


def context_of(owner: Identity, member: Identity, admission: Admission) -> ssl.SSLContext:
    """Make the TLS context in which `member` goes to the entrance of `owner`."""
    context = BrokerAddress.embedded(f"{HOST}:1", owner.peer_id).context(member, admission.certificate)
    assert context is not None
    return context


def client(
    port: int, owner: Identity, member: Identity, admission: Admission, name: str = "any", **options: object
) -> aiomqtt.Client:
    """Make an MQTT client of `member` without scruples: it publishes whatever one asks it to."""
    given: dict[str, object] = {
        "identifier": f"{member.peer_id}.{name}",
        "tls_context": context_of(owner, member, admission),
    } | options
    given["socket_options"] = NO_DELAY
    return aiomqtt.Client(HOST, port, keepalive=10, timeout=10, **given)  # type: ignore[arg-type]
