"""Frames: what travels on a training stream. A fixed header, then the payload that the header announces. No I/O here.

A receiver posts what it expects before it can come, so a header is either one of those, with the very size that was
posted, or refused before any memory is taken.
"""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

from dtfm_protocol.errors import Refused

_FORM = struct.Struct("!4sBBHIIIIfQ")
_MAGIC = b"DTF1"
HEADER_BYTES = _FORM.size


class Kind(IntEnum):
    """What a frame carries."""

    ACTIVATION = 1  # forward, to the next stage; index = micro-batch
    GRADIENT = 2  # backward, to the stage before; index = micro-batch
    PART = 3  # a peer's own sum of one part of a bucket, to the part's owner; index = part, group = bucket
    REDUCED = 4  # the part's total, from its owner; index = part, group = bucket
    EVALUATION = 5  # a forward activation of an evaluation; index = micro-batch
    VOTE = 6  # JSON, to the arbiter: this peer holds its share of the step; index = 0 training, 1 evaluation
    COMMIT = 7  # JSON, from the arbiter: the step is final; index as above


@dataclass(frozen=True, slots=True)
class Key:
    """What makes a frame unique among those of one sender."""

    kind: Kind
    step: int
    index: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """A frame's header: its key, the plan it belongs to, and its payload's scale and size in bytes."""

    plan_version: int
    key: Key
    size: int
    scale: float = 1.0

    def pack(self) -> bytes:
        """The header's 36 bytes."""
        key = self.key
        return _FORM.pack(
            _MAGIC, key.kind, 0, key.group, self.plan_version, key.step, key.index, 0, self.scale, self.size
        )

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview) -> "Header":
        """Read a header.

        Raises:
            Refused: these bytes are not one.
        """
        if len(data) != HEADER_BYTES:
            raise Refused(f"a header of {len(data)} bytes")
        magic, kind, _, group, version, step, index, _, scale, size = _FORM.unpack(data)
        if magic != _MAGIC:
            raise Refused("a frame does not begin like one")
        if not math.isfinite(scale):
            raise Refused("a frame with a scale that is not finite")
        try:
            return cls(version, Key(Kind(kind), step, index, group), size, scale)
        except ValueError:
            raise Refused(f"a frame of unknown kind {kind}") from None
