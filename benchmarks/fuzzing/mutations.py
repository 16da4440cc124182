"""Mutations: inputs that are nearly valid, made of valid ones by a seeded generator of random numbers."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

LARGEST = 1 << 20
"""Bytes of the largest input: as many as a message on a stream may have."""
MOST_AT_ONCE = 4
"""Mutations of one input."""
NUMBERS = (
    0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
"""Numbers at which something ends."""
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, -1, *NUMBERS, 10**30, 10**400, 0.5, -0.0, 1e-320, 1e20, 1e308, -1e308, float("nan"),
    float("inf"), "", " ", "0", "\0", "\ud800", "\u202e", "\x1b[2J", "../../x", "{}", "a" * 129, "é" * 600, "/" * 300,
    "0" * 128, "f" * 4096,
)  # fmt: skip
"""Values that a document does not expect."""
ODD_PARTS = ("[]", "{}", "[[]]", "[{}]", '{"": null}', '{"a": {"a": {"a": []}}}', f"[{'0,' * 300}0]", '["a", 1]')
"""Parts of a document, as JSON, where it expects others."""
LARGE_SHARE = 0.002
"""Share of inputs that are large: each takes as long as hundreds of others."""
STOP_SHARE = 0.2
"""How often a part that has parts of its own is changed as a whole."""
DEEP = 20_000
"""Brackets of a text that is nested too deep."""

Tree = Any


class Mutator:
    """A source of inputs that are nearly one of `seeds`."""

    def __init__(self, seeds: Sequence[bytes], rng: random.Random) -> None:
        """Take the valid inputs.

        Args:
            seeds: valid inputs; where they are JSON, their structure is changed as well as their bytes.
            rng: decides all.
        """
        self._seeds, self._rng = list(seeds), rng
        self._documents = [seed for seed in seeds if isinstance(tree := _tree(seed), dict | list) and tree]

    def next(self) -> bytes:
        """Return the next input, of LARGEST bytes at most."""
        rng = self._rng
        if self._documents and rng.random() < 0.6:
            data = self._document()
            if rng.random() < 0.8:
                return data[:LARGEST]
        else:
            data = rng.choice(self._seeds)
        for _ in range(rng.randint(1, MOST_AT_ONCE)):
            data = rng.choice(_OF_BYTES)(data, rng) if rng.random() < 0.9 else self._spliced(data)
        return data[:LARGEST]

    def _spliced(self, data: bytes) -> bytes:
        """Return the beginning of one input with the end of another."""
        other = self._rng.choice(self._seeds)
        return data[: self._rng.randint(0, len(data))] + other[self._rng.randint(0, len(other)) :]

    def _document(self) -> bytes:
        """Return a document with a few of its parts changed."""
        tree = json.loads(self._rng.choice(self._documents))
        for _ in range(self._rng.randint(1, MOST_AT_ONCE)):
            tree = self._changed(tree)
        return json.dumps(tree, separators=(",", ":")).encode()

    def _changed(self, tree: Tree) -> Tree:
        """Return a tree with one of its parts changed; the tree itself may be changed for it."""
        rng = self._rng
        place = _place(tree, rng)
        if place is None:
            return _odd(rng)
        parent, key = place
        match rng.randrange(8):
            case 0 | 1:
                parent[key] = _odd(rng)
            case 2:
                del parent[key]
            case 3:
                other, name = _place(tree, rng) or place
                parent[key] = json.loads(json.dumps(other[name]))
            case 4 if isinstance(parent, list):
                parent[key:key] = [parent[key]] * (20_000 if rng.random() < LARGE_SHARE else rng.choice((1, 2, 17)))
            case 4:
                parent[rng.choice(("", "a", f"{key}2", "\ud800", "x" * 200, str(key).upper()))] = parent[key]
            case 5:
                parent[key] = [parent[key]] if rng.random() < 0.5 else {str(key): parent[key]}
            case _:
                parent[key] = _other_value(parent[key], rng)
        return tree


def _odd(rng: random.Random) -> Tree:
    """Return what a document does not expect."""
    return json.loads(rng.choice(ODD_PARTS)) if rng.random() < 0.2 else rng.choice(ODD_VALUES)


def _tree(seed: bytes) -> Tree:
    try:
        return json.loads(seed)
    except (ValueError, RecursionError):
        return None


def _place(tree: Tree, rng: random.Random) -> tuple[Any, Any] | None:
    """Return a place of a document, as the part that holds it and its key or index there, found by going down from the
    top: to list all places of a large document would take longer than what is tried. None: it has no parts."""
    if not isinstance(tree, dict | list) or not tree:
        return None
    part = tree
    while True:
        key = rng.choice(list(part)) if isinstance(part, dict) else rng.randrange(len(part))
        inner = part[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < STOP_SHARE:
            return part, key
        part = inner


def _other_value(value: Tree, rng: random.Random) -> Tree:
    """Return a value of the same kind, or nearly."""
    if isinstance(value, bool) or value is None:
        return rng.choice((True, False, None, 0))
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 2, value % 1000 + 0.5, f"{value:x}", *NUMBERS))
    if isinstance(value, float):
        return rng.choice((-value, value * 1e30, value / 1e30, value // 1, str(value), 0.0))
    if isinstance(value, str):
        data = rng.choice(_OF_BYTES)(value.encode(errors="replace"), rng)
        return data.decode(errors=rng.choice(("replace", "surrogateescape")))[:LARGEST]
    return value


def _flip(data: bytes, rng: random.Random) -> bytes:
    """Flip one bit."""
    if not data:
        return b"\x00"
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set(data: bytes, rng: random.Random) -> bytes:
    """Set one byte."""
    at = rng.randint(0, len(data))
    return (
        data[:at] + rng.choice((b"\0", b"\xff", b"\x7f", b"\x80", b" ", b'"', b"[", rng.randbytes(1))) + data[at + 1 :]
    )


def _cut(data: bytes, rng: random.Random) -> bytes:
    """End early."""
    return data[: rng.randint(0, len(data))]


def _without(data: bytes, rng: random.Random) -> bytes:
    """Leave a piece out."""
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.choice((1, 2, 4, 16, 100)) :]


def _twice(data: bytes, rng: random.Random) -> bytes:
    """Say a piece twice, or many times."""
    at, size = rng.randint(0, len(data)), rng.choice((1, 2, 4, 16, 100))
    return data[:at] + data[at : at + size] * rng.choice((1, 2, 10)) + data[at:]


def _with_rubbish(data: bytes, rng: random.Random) -> bytes:
    """Put random bytes somewhere."""
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 16, 100))) + data[at:]


def _with_number(data: bytes, rng: random.Random) -> bytes:
    """Write a number where a length may stand, or a count."""
    size = rng.choice((1, 2, 4, 8))
    number = rng.choice((*NUMBERS, len(data), len(data) + 1, max(0, len(data) - 1))) % (1 << 8 * size)
    at = rng.choice((0, rng.randint(0, len(data))))
    return data[:at] + number.to_bytes(size, rng.choice(("big", "little"))) + data[at + size :]


def _with_varint(data: bytes, rng: random.Random) -> bytes:
    """Write a number as protobuf and MQTT do."""
    number, written = rng.choice(NUMBERS), bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    at = rng.randint(0, len(data))
    return data[:at] + bytes(written) + data[at + rng.choice((0, 1, len(written))) :]


def _with_digits(data: bytes, rng: random.Random) -> bytes:
    """Write another number where one stands as text."""
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", data[:65536]))
    if not found:
        return _with_number(data, rng)
    at = rng.choice(found)
    digits = rng.choice((b"9" * 5000, b"1e999", b"-1", b"1e-999", b"0x10", b"NaN", b"1" * 25, b"00", b"0.1"))
    return data[: at.start()] + digits + data[at.end() :]


def _deep(data: bytes, rng: random.Random) -> bytes:
    """Nest something far too deep."""
    at = rng.randint(0, len(data))
    opening = rng.choice((b"[", b'{"a":', b"\x91", b"\x81\xa1a", b"\x30\x80", b"\x0a\x7f"))
    return data[:at] + opening * (DEEP if rng.random() < 20 * LARGE_SHARE else rng.choice((3, 300))) + data[at:]


_OF_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _flip, _flip, _set, _set, _cut, _without, _twice, _with_rubbish, _with_number, _with_number),
    *(_with_varint, _with_digits, _with_digits),
    _deep,
)
