"""Guests at a coordinator's entrance for its tests: members, and connections that say whatever a test has them say."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

from dtfm_coordinator.serve.entrance import Entrance
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.pinned_tls import PinnedContext
from tests.coordinator.test_mqtt_packets import connect, packet, text
from tests.harness.entrances import HOST, context_of
from tests.harness.membership import SWARM, coordinator_of, member_of

OWNER, STANDBY = Identity.generate(), Identity.generate()
PATIENCE = 30.0
CONNACK, PUBACK, REFUSED = b"\x20\x02\x00\x00", b"\x40\x02\x00\x01", b"\x20\x02\x00\x05"
SUBACK = b"\x90\x03\x00\x01\x00"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def topic(name: str, peer: str = "") -> str:
    return f"dtfm/{SWARM}/{name}" + (f"/{peer}" if peer else "")


def publish(name: str, payload: bytes, *, retain: bool = False) -> bytes:
    """A message that is to be acknowledged."""
    return packet(0x32 | retain, text(name) + b"\x00\x01" + payload)


def subscribe(*names: str) -> bytes:
    return packet(0x82, b"\x00\x01" + b"".join(text(name) + b"\x00" for name in names))


def introduction(peer: str, name: str = "raw", *, will: bytes = b"") -> bytes:
    fields = [text(f"{peer}.{name}")]
    if will:
        fields += [text(topic("presence", peer)), text(will)]
    return connect(0x26 if will else 0x02, *fields)


class Raw:
    """A connection to the entrance by someone without scruples."""

    def __init__(self, streams: Streams) -> None:
        self.reader, self.writer = streams

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, door: Entrance, context: ssl.SSLContext | None = None) -> AsyncIterator["Raw"]:
        """Connect; without a context as a stranger."""
        async with asyncio.timeout(PATIENCE):
            found = cls(await asyncio.open_connection(HOST, door.port, ssl=context or PinnedContext(OWNER.peer_id)))
        try:
            yield found
        finally:
            found.writer.transport.abort()
            with contextlib.suppress(OSError):
                await found.writer.wait_closed()

    def say(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def hear(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(size)

    async def ended(self) -> bytes:
        """What came until the other end closed; the connection is over then."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except OSError:
                return b""


class Party:
    """A member: its key, its admission, and its way in."""

    def __init__(self, coordinator: Identity = OWNER, **options: float) -> None:
        self.identity, self.admission = member_of(coordinator, **options)  # type: ignore[arg-type]
        self.peer = self.identity.peer_id
        self.context = context_of(OWNER, self.identity, self.admission)

    @contextlib.asynccontextmanager
    async def session(self, door: Entrance, name: str = "raw", *, will: bytes = b"") -> AsyncIterator[Raw]:
        """A session that has begun."""
        async with Raw.to(door, self.context) as raw:
            raw.say(introduction(self.peer, name, will=will))
            assert await raw.hear(4) == CONNACK
            yield raw


def coordinator() -> Party:
    party = Party()
    party.identity, party.admission, party.peer = OWNER, coordinator_of(OWNER), OWNER.peer_id
    party.context = context_of(OWNER, OWNER, party.admission)
    return party


async def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event of its own."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
