"""MQTT 3.1.1 packets: reads what clients send, within bounds, and writes what a broker answers.

Only what the control plane uses is understood: clean sessions, and messages that are delivered at most or at least
once. Anything else is refused. Nothing here knows of sockets or clocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dtfm_protocol.errors import Refused

CONTROL_LIMIT = 16 << 10
"""Bytes of the largest packet that is not a message; a CONNECT carries a last will."""
TEXT_LIMIT = 512
"""Bytes of the longest client id, user name, topic or filter."""
SECRET_LIMIT = 1024
"""Bytes of the longest password, which is not looked at."""
PINGRESP = b"\xd0\x00"
NOT_AUTHORIZED = 5
"""Return code of a CONNACK to a client that may not enter."""

_CONNECT, _CONNACK, _PUBLISH, _PUBACK, _SUBSCRIBE, _SUBACK, _UNSUBSCRIBE, _UNSUBACK, _PINGREQ, _DISCONNECT = (
    1, 2, 3, 4, 8, 9, 10, 11, 12, 14,
)  # fmt: skip
_FLAGS = {_CONNECT: 0, _PUBACK: 0, _SUBSCRIBE: 2, _UNSUBSCRIBE: 2, _PINGREQ: 0, _DISCONNECT: 0}
"""Flags that the standard sets in the first byte of each kind of packet but PUBLISH."""


@dataclass(frozen=True)
class Publication:
    """A message, as it is published, kept, or left as a last will."""

    topic: str
    payload: bytes
    retain: bool = False
    """Whether the broker is to keep it."""
    id: int | None = None
    """Packet id under which its writer wants it acknowledged; None: not at all."""

    def encode(self, *, retained: bool) -> bytes:
        """Encode a PUBLISH that is delivered at most once; `retained`: it was kept, and is not news."""
        name = _text(self.topic)
        head = bytes([_PUBLISH << 4 | retained]) + _length(len(name) + len(self.payload))
        return head + name + self.payload


@dataclass(frozen=True)
class Connect:
    """A client's first packet."""

    client: str
    user: str | None
    keep_alive: int
    """Seconds of silence after which it promises to say that it lives; 0: it promises nothing."""
    will: Publication | None


@dataclass(frozen=True)
class Acknowledge:
    """The client's word that a message came."""

    id: int


@dataclass(frozen=True)
class Subscribe:
    """A request for the messages of some topics."""

    id: int
    filters: tuple[str, ...]


@dataclass(frozen=True)
class Unsubscribe:
    """The end of earlier requests."""

    id: int
    filters: tuple[str, ...]


@dataclass(frozen=True)
class Ping:
    """The client's word that it lives."""


@dataclass(frozen=True)
class Disconnect:
    """Goodbye: no last will is to be published."""


Packet = Connect | Publication | Acknowledge | Subscribe | Unsubscribe | Ping | Disconnect


class PacketReader:
    """Reader of a client's packets out of a stream of bytes; it holds no more than one packet that is not whole."""

    def __init__(self, limit: int) -> None:
        """Start at the beginning of a connection.

        Args:
            limit: bytes of the largest message, its topic included.
        """
        self._limit = limit
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Yield the packets that `data` completes.

        Raises:
            Refused: it is not MQTT 3.1.1, too large, or of a kind that is not understood; the reader is of no use then.
        """
        self._held += data
        start = 0
        while (span := self._span(start)) is not None:
            body, end = span
            yield _parse(self._held[start], bytes(self._held[body:end]))
            start = end
        del self._held[:start]

    def _span(self, start: int) -> tuple[int, int] | None:
        """Return where the body of the packet at `start` begins and ends; None where it has not come whole."""
        if start >= len(self._held):
            return None
        kind, flags = self._held[start] >> 4, self._held[start] & 0x0F
        if kind != _PUBLISH and flags != _FLAGS.get(kind):
            raise Refused("not a packet that a client sends")
        size, at = 0, start + 1
        while True:
            if at >= len(self._held):
                return None
            size |= (self._held[at] & 0x7F) << 7 * (at - start - 1)
            if self._held[at] < 0x80:
                break
            at += 1
            if at - start > 4:
                raise Refused("a packet whose length is none")
        most = self._limit if kind == _PUBLISH else CONTROL_LIMIT
        if size > most:
            raise Refused(f"a packet of {size} bytes, more than {most}")
        return (at + 1, at + 1 + size) if len(self._held) > at + size else None


class _Fields:
    """The fields of one packet's body, read one after the other."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises Refused where there are not so many."""
        self._at += size
        if self._at > len(self._body):
            raise Refused("a packet that is cut short")
        return self._body[self._at - size : self._at]

    def number(self) -> int:
        """Return the next two bytes as a number."""
        return int.from_bytes(self.take(2), "big")

    def sized(self, limit: int) -> bytes:
        """Return the next bytes that have their length before them."""
        size = self.number()
        if size > limit:
            raise Refused(f"a field of {size} bytes, more than {limit}")
        return self.take(size)

    def text(self) -> str:
        """Return the next text."""
        try:
            text = self.sized(TEXT_LIMIT).decode()
        except UnicodeDecodeError:
            raise Refused("a text that is not UTF-8") from None
        if "\0" in text:
            raise Refused("a text with a zero in it")
        return text

    def rest(self) -> bytes:
        """Return all that is left."""
        return self.take(len(self._body) - self._at)

    @property
    def left(self) -> int:
        """Number of bytes that are left."""
        return len(self._body) - self._at


def _parse(first: int, body: bytes) -> Packet:
    """Read one packet by its first byte, which is a client's, and its body. Raises Refused where it is malformed."""
    kind, fields = first >> 4, _Fields(body)
    if kind == _PUBLISH:
        return _message(first & 0x0F, fields)
    packet = _other(kind, fields)
    if fields.left:
        raise Refused("a packet that is longer than what it says")
    return packet


def _other(kind: int, fields: _Fields) -> Packet:
    if kind == _CONNECT:
        return _connect(fields)
    if kind == _PUBACK:
        return Acknowledge(fields.number())
    if kind == _SUBSCRIBE:
        return Subscribe(_packet_id(fields), _filters(fields, with_level=True))
    if kind == _UNSUBSCRIBE:
        return Unsubscribe(_packet_id(fields), _filters(fields, with_level=False))
    return Ping() if kind == _PINGREQ else Disconnect()


def _message(flags: int, fields: _Fields) -> Publication:
    level = flags >> 1 & 3
    if level > 1:
        raise Refused("a message that is to be delivered exactly once, which is not offered")
    topic = fields.text()
    return Publication(topic, id=_packet_id(fields) if level else None, payload=fields.rest(), retain=bool(flags & 1))


def _connect(fields: _Fields) -> Connect:
    if fields.sized(8) != b"MQTT" or fields.take(1) != b"\x04":
        raise Refused("another protocol than MQTT 3.1.1")
    flags, keep_alive = fields.take(1)[0], fields.number()
    has_user, has_password, will_retain, has_will, clean = (flags & bit for bit in (0x80, 0x40, 0x20, 0x04, 0x02))
    will_level = flags >> 3 & 3
    if flags & 1 or will_level > 1 or (has_password and not has_user) or (not has_will and (will_level or will_retain)):
        raise Refused("a first packet whose flags are wrong")
    if not clean:
        raise Refused("a session that outlives its connection, which is not offered")
    client = fields.text()
    will = Publication(fields.text(), fields.sized(CONTROL_LIMIT), bool(will_retain)) if has_will else None
    user = fields.text() if has_user else None
    if has_password:
        fields.sized(SECRET_LIMIT)
    return Connect(client, user, keep_alive, will)


def _packet_id(fields: _Fields) -> int:
    if not (number := fields.number()):
        raise Refused("a packet with the id 0")
    return number


def _filters(fields: _Fields, *, with_level: bool) -> tuple[str, ...]:
    found = []
    while fields.left:
        found.append(fields.text())
        if with_level and fields.take(1)[0] > 2:
            raise Refused("a level of delivery that there is not")
    if not found:
        raise Refused("a packet that names no topic")
    return tuple(found)


def connack(code: int = 0) -> bytes:
    """Encode the answer to a client's first packet; 0: it is let in."""
    return bytes([_CONNACK << 4, 2, 0, code])


def puback(number: int) -> bytes:
    """Encode the word that a message came."""
    return bytes([_PUBACK << 4, 2]) + number.to_bytes(2, "big")


def suback(number: int, count: int) -> bytes:
    """Encode the answer to a `Subscribe` to `count` topics: messages are delivered at most once.

    With clean sessions nothing is delivered a second time anyway, so that acknowledgements would say nothing.
    """
    return bytes([_SUBACK << 4]) + _length(2 + count) + number.to_bytes(2, "big") + bytes(count)


def unsuback(number: int) -> bytes:
    """Encode the answer to an `Unsubscribe`."""
    return bytes([_UNSUBACK << 4, 2]) + number.to_bytes(2, "big")


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _length(size: int) -> bytes:
    """Encode a packet's length: 7 bits a byte, the lowest first."""
    found = bytearray()
    while True:
        size, part = divmod(size, 128)
        found.append(part | (0x80 if size else 0))
        if not size:
            return bytes(found)
