"""The state of a laying out between two pieces of the text, as bytes, so that who is broken off can go on there."""

from typing import Any, NamedTuple

import numpy as np

from dtfm_protocol.bounds import Count
from dtfm_protocol.data.marks import Marks
from dtfm_protocol.data.packing import OpenBins, PackingCounts
from dtfm_protocol.data.token_shards import Tokens
from dtfm_protocol.schema import Schema


class _Head(Schema):
    """The first line."""

    samples: Count
    bins: Count
    targets: Count
    padding: Count
    cut: Count
    longest: Count
    empty: Count
    repeated: Count | None
    left: Count
    """Tokens that fill no shard yet."""
    tokens: Count
    """Those in open bins."""
    open: Count
    """Number of these bins."""


class LayoutState(NamedTuple):
    """All that decides, with the text that is left and the shards that are there, how the corpus goes on."""

    counts: PackingCounts
    bins: OpenBins
    left: tuple[Tokens, Marks]
    """Tokens that fill no shard yet, and their marks: [tokens] each."""
    repeated: int | None
    """Tokens of the documents that come more than once; None: these are not all laid out yet."""

    def to_bytes(self) -> bytes:
        """Return it as a line of JSON, and little-endian integers behind it."""
        tokens, marks = self.left
        head = _Head(
            **vars(self.counts),
            repeated=self.repeated,
            left=len(tokens),
            tokens=len(self.bins.tokens),
            open=len(self.bins.sizes),
        )
        arrays: list[tuple[Any, str]] = [
            *((self.bins.sizes, "<i8"), (self.bins.numbers, "<i8"), (self.bins.tokens, "<u4"), (tokens, "<u4")),
            *((self.bins.marks, "u1"), (marks, "u1")),
        ]
        parts = [np.asarray(values).astype(kind).tobytes() for values, kind in arrays]
        return head.model_dump_json().encode() + b"\n" + b"".join(parts)

    @classmethod
    def of_bytes(cls, data: bytes) -> "LayoutState":
        """Return the one that these are of, which `to_bytes` has made.

        Raises:
            ValueError: they are none.
        """
        line, _, rest = data.partition(b"\n")
        head, at = _Head.model_validate_json(line), 0
        found = list[Any]()
        kinds = (("<i8", head.open), ("<i8", head.open), ("<u4", head.tokens), ("<u4", head.left))
        for kind, count in (*kinds, ("u1", head.tokens), ("u1", head.left)):
            found.append(np.frombuffer(rest, kind, count, at))
            at += found[-1].nbytes
        sizes, numbers, tokens, left, marks, left_marks = found
        counts = PackingCounts(**head.model_dump(include=set(PackingCounts.__dataclass_fields__)))
        bins = OpenBins(tokens.astype(np.int64), marks, sizes, numbers)
        return cls(counts, bins, (left.astype(np.int64), left_marks), head.repeated)
