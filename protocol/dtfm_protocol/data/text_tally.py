"""The tally of a text that becomes tokens: which documents count, which rows are lost, and where each is (pure)."""

import numpy as np
import numpy.typing as npt

from dtfm_protocol.bounds import Count
from dtfm_protocol.data.documents import NO_TEXT, DocumentReader, Skipped
from dtfm_protocol.data.piece_encoder import EncodedPart
from dtfm_protocol.data.repeats import Repeats
from dtfm_protocol.data.rows import Fault
from dtfm_protocol.data.source_files import SourceFiles
from dtfm_protocol.data.text_pieces import TextPiece, repeats_of
from dtfm_protocol.data.token_shards import Tokens
from dtfm_protocol.errors import UserError
from dtfm_protocol.schema import Schema


class PieceTally(Schema):
    """What there is in a piece of the text."""

    tokens: Count = 0
    """Tokens of it that are in the corpus."""
    found: Count = 0
    """Documents that are not empty."""
    taken: Count = 0
    """Those of them that are in the corpus."""
    rows: Count = 0
    skipped: Count = 0
    """Rows that were passed over."""
    first: str = ""
    """The first of these, and what is wrong with it."""
    is_end: bool = False
    """Whether nothing that comes after it in its file can be read."""
    size: float = 0.0
    """Bytes of the file."""


class TextTally:
    """Tally of pieces, in the order of the corpus."""

    def __init__(self, seed: int) -> None:
        """Begin with none; `seed` draws documents of sources with a weight."""
        self._seed = seed
        self._source: SourceFiles | None = None
        self._repeats: Repeats = Repeats(1, "")
        self._turn, self._file = 0, ""
        self._found = self._taken = self._rows = 0
        """Documents of this turn of the source, and of all turns in the corpus; rows of this file."""
        self._is_over = False
        """Whether the rest of this file cannot be read."""
        self.skipped = Skipped()
        self.tokens = self.repeated = 0
        """Tokens in the corpus, and those of sources that are repeated."""
        self.read = 0.0

    def begin(self, piece: TextPiece) -> bool:
        """Come to a piece; whether it counts, as its file can be read as far as that.

        Raises:
            UserError: there is no text in the source before it.
        """
        if piece.source is not self._source:
            self.end_source()
            self._source, self._repeats = piece.source, repeats_of(piece.source, self._seed)
            self._turn, self._file, self._found, self._taken = 0, "", 0, 0
            self._reader = DocumentReader(piece.source)
        if piece.turn != self._turn:
            self._turn, self._file, self._found = piece.turn, "", 0
        if str(piece.file) != self._file:
            self._file, self._rows, self._is_over = str(piece.file), 0, False
        return not self._is_over

    def take(self, piece: TextPiece, part: EncodedPart, so_far: PieceTally) -> tuple[Tokens, PieceTally]:
        """Return the tokens of a part that are in the corpus, and what there is in the piece so far with it.

        Raises:
            UserError: a row cannot be read, and the source does not pass over such.
        """
        is_there = self.are_there(piece, len(part.lengths), so_far)
        tokens = part.tokens if is_there.all() else part.tokens[np.repeat(is_there, part.lengths)]
        if self.tokens + so_far.tokens == 0:
            tokens = tokens[1:]  # nothing comes before the first document
        return tokens, self.counted(piece, part, so_far, is_there, len(tokens))

    def are_there(self, piece: TextPiece, documents: int, so_far: PieceTally) -> npt.NDArray[np.bool_]:
        """Return which of the piece's next documents are in the corpus: [documents]."""
        if self._source is None or self._source.source.weight.is_integer():
            return np.ones(documents, dtype=bool)
        first = self._found + so_far.found
        return np.array([self._repeats.of(first + place) > piece.turn for place in range(documents)], dtype=bool)

    def counted(
        self,
        piece: TextPiece,
        part: EncodedPart,
        so_far: PieceTally,
        is_there: npt.NDArray[np.bool_],
        tokens: int,
    ) -> PieceTally:
        """Return what there is in the piece so far with a part of it.

        Args:
            is_there: which of the part's documents are in the corpus: [documents].
            tokens: number of tokens of these.

        Raises:
            UserError: a row cannot be read, and the source does not pass over such.
        """
        skipped = Skipped()
        for fault in part.faults:
            number = self._rows + fault.number if fault.number else 0
            placed = Fault(number, fault.why, fault.size, fault.rows)
            self._reader.content(placed, piece.file, skipped if not piece.turn else None)
        return PieceTally(
            tokens=so_far.tokens + tokens,
            found=so_far.found + len(is_there),
            taken=so_far.taken + int(is_there.sum()),
            rows=part.rows or 0,
            skipped=so_far.skipped + skipped.rows,
            first=so_far.first or skipped.first.encode("utf-8", "replace").decode(),
            is_end=so_far.is_end or any(fault.is_end for fault in part.faults),
            size=so_far.size + part.read,
        )

    def end(self, tally: PieceTally) -> None:
        """Count a whole piece."""
        assert self._source is not None
        self._found += tally.found
        self._taken += tally.taken
        self._rows += tally.rows
        self._is_over = tally.is_end
        if tally.skipped:
            self.skipped.add(tally.skipped, tally.first)
        self.tokens += tally.tokens
        self.repeated += tally.tokens if self._source.source.weight > 1 else 0
        self.read += tally.size

    def end_source(self) -> None:
        """Check that there was text in the source of which all pieces were counted.

        Raises:
            UserError: there was none.
        """
        if self._source is None or self._taken:
            return
        key, source = self._source.key, self._source.source
        if self._found:
            raise UserError(f"{key}: weight = {source.weight:g} takes none of its {self._found} documents: raise it")
        raise UserError(NO_TEXT.format(key, source.path))
