"""The frames of a training stream: a fixed header, then the payload that the header announces. No I/O here.

A receiver posts what it expects before it can come, so a header is either one of those, with the very size that was
posted, or refused before any memory is taken.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from dtfm_protocol.errors import Refused

_FORM = struct.Struct("!4sBxHIIIQ")
_MAGIC = b"DTF2"
HEADER_BYTES = _FORM.size
"""Bytes of a frame's header."""


class Kind(IntEnum):
    """The kind of a frame, by what it carries."""

    ACTIVATION = 1  # forward, to the next stage; index = micro-batch
    GRADIENT = 2  # backward, to the stage before; index = micro-batch
    PART = 3  # a peer's own sum of one part of a bucket, to the part's owner; index = part, group = bucket
    REDUCED = 4  # the part's total, from its owner; index = part, group = bucket
    EVALUATION = 5  # a forward activation of an evaluation; index = micro-batch
    VOTE = 6  # JSON, to the arbiter: this peer holds its share of the step; index = 0 training, 1 evaluation
    COMMIT = 7  # JSON, from the arbiter: the step is final; index as above
    PULSE = 8  # no payload: the peer lives; index = milliseconds that it has been at its present action

    @property
    def is_bulk(self) -> bool:
        """Whether the frame may wait: nobody's next forward or backward needs an all-reduce's part."""
        return self in (Kind.PART, Kind.REDUCED)

    @property
    def carries_tensor(self) -> bool:
        """Whether the frame carries one, and may be large: what does not is small beside a measurement."""
        return self not in (Kind.VOTE, Kind.COMMIT, Kind.PULSE)


@dataclass(frozen=True, slots=True)
class Key:
    """The key that makes a frame unique among those of one sender; `Kind` says what `index` and `group` count."""

    kind: Kind
    step: int
    index: int
    group: int = 0

    def __str__(self) -> str:
        group = f" of bucket {self.group}" if self.kind.is_bulk else ""
        return f"{self.kind.name} {self.index}{group} of step {self.step}"


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a frame: its key, the plan it belongs to, and its payload's size in bytes."""

    plan_version: int
    key: Key
    size: int

    def pack(self) -> bytes:
        """Return the header's 28 bytes."""
        key = self.key
        return _FORM.pack(_MAGIC, key.kind, key.group, self.plan_version, key.step, key.index, self.size)

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> "FrameHeader":
        """Parse a header.

        Raises:
            Refused: these bytes are not one.
        """
        if len(data) != HEADER_BYTES:
            raise Refused(f"a header of {len(data)} bytes")
        magic, kind, group, version, step, index, size = _FORM.unpack(data)
        if magic != _MAGIC:
            raise Refused("a frame does not begin like one")
        try:
            return cls(version, Key(Kind(kind), step, index, group), size)
        except ValueError:
            raise Refused(f"a frame of unknown kind {kind}") from None
