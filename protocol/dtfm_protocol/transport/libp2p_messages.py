"""The wire format of protobuf, for the few messages of libp2p's own protocols that are spoken here.

See protobuf.dev/programming-guides/encoding. libp2p puts a message's length before it, as a varint.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from dtfm_protocol.errors import Refused
from dtfm_protocol.wire.stream import Bytes

Fields = dict[int, int | bytes]
"""The fields of a message that was read, by number; of one that is repeated the last."""


def packed(fields: Mapping[int, int | bytes | Sequence[bytes]]) -> bytes:
    """Return the bytes of the message with these fields, by number; a sequence is a field that is repeated."""
    parts = []
    for number, value in fields.items():
        if isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            for item in [value] if isinstance(value, bytes) else value:
                parts.append(varint(number << 3 | 2) + varint(len(item)) + item)
    return b"".join(parts)


def unpacked(data: bytes) -> Fields:
    """Return the fields of a message.

    Raises:
        Refused: this is not protobuf.
    """
    fields: Fields = {}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            fields[number], at = _read_varint(data, at)
            continue
        size, at = _read_varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, len(data)), at)
        if at + size > len(data):
            raise Refused("a protobuf message that ends too early")
        fields[number] = data[at : at + size]
        at += size
    return fields


def with_length(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return varint(len(message)) + message


async def read_with_length(read: Callable[[int], Awaitable[Bytes]], limit: int) -> bytes:
    """Read the next message that has its length before it.

    Args:
        read: reads the next so many bytes, exactly.
        limit: bytes of the largest message, less than 2 MiB.

    Raises:
        Refused: the message is longer. Beside that, what `read` raises.
    """
    size = 0
    for shift in (0, 7, 14):
        (byte,) = bytes(await read(1))
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise Refused("a protobuf message that is too long")
    if size > limit:
        raise Refused(f"a protobuf message of {size} bytes, more than {limit}")
    return bytes(await read(size))


def varint(value: int) -> bytes:
    """Encode a natural number: seven bits a byte, the lowest first; all bytes but the last have the eighth bit set."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Refused("a protobuf message that ends too early")
