"""The stream of a job's text into its corpus: piece after piece, from where an earlier run was broken off."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dtfm_protocol.data.corpus_writer import CorpusWriter
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.encoding_pool import Encoded, encoding
from dtfm_protocol.data.piece_encoder import PieceEncoder
from dtfm_protocol.data.preparing_journal import PreparingJournal
from dtfm_protocol.data.text_pieces import TextPiece, text_pieces
from dtfm_protocol.data.text_tally import PieceTally, TextTally
from dtfm_protocol.data.token_shards import Tokens
from dtfm_protocol.data.tokenizer import as_written
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data

CHECKED_AT_ONCE = 4
"""Shards that are hashed at the same time before they are gone on with."""


class TextStream:
    """The stream of one text into a writer.

    What is written depends on the text alone: not on the number of processes, and not on how often it was broken off.
    Going on begins with the piece in which the last whole shard ends; what of it is in that shard is passed over.
    """

    def __init__(
        self,
        data: Data,
        documents: Documents,
        tokenizer: Any,
        seed: int,
        writer: CorpusWriter,
        journal: PreparingJournal | None,
    ) -> None:
        """Read nothing yet."""
        self._data, self._documents, self._tokenizer = data, documents, tokenizer
        self._writer, self._journal = writer, journal
        self._pieces = text_pieces(documents.sources, seed)
        self._passed_over = 0
        """Tokens that are in the corpus already, of those that come next."""
        self.tally = TextTally(seed)

    @property
    def repeated(self) -> int:
        """Tokens at the corpus's beginning that may come again."""
        return self.tally.repeated

    @property
    def words(self) -> list[str]:
        """What people should know of how documents were laid out: nothing, as they follow each other."""
        return []

    def resume(self) -> bool:
        """Take up what the journal says was done, as far as it is still there and whole; whether there was any.

        Raises:
            UserError: the disk is full or cannot be written, or what is there is of another corpus than it must be.
        """
        journal, writer = self._journal, self._writer
        if journal is None:
            return False
        if not journal.is_begun or journal.shard_tokens != writer.shard_tokens:
            journal.begin(as_written(self._data, self._tokenizer), writer.shard_tokens)
            return False
        written = journal.shards
        with ThreadPoolExecutor(CHECKED_AT_ONCE) as threads:
            for shard, is_whole in zip(written, threads.map(writer.is_whole, written), strict=True):
                if not is_whole or not writer.has_before(shard):
                    break
        there = writer.shards * writer.shard_tokens
        count = 0
        for recorded in journal.pieces:
            if self.tally.tokens + recorded.tokens > there or self._next() is None:
                break
            self.tally.end(recorded)
            count += 1
        self._passed_over = there - self.tally.tokens
        journal.cut_back(count, writer.shards)
        journal.pieces, journal.shards = [], []
        return there > 0

    def run(self, workers: int) -> Iterator[float]:
        """Write what is left, and yield the bytes of the text that were read, as they are.

        Args:
            workers: number of processes; up to 1: this one alone.

        Raises:
            UserError: a row cannot be read, a source has no text, or as the writer does.
        """
        if self._documents.manual:
            part = PieceEncoder(self._data, self._tokenizer).of_texts(self._documents.manual, self._documents.bytes)
            self._write(part.tokens[1:])
            yield part.read
        else:
            with encoding(self._data, self._tokenizer, self._pieces, workers) as encoded:
                yield from self._take(encoded)
        if self._passed_over:
            raise UserError("the text has become shorter while it was turned into tokens: start again")

    def _take(self, encoded: Iterator[Encoded]) -> Iterator[float]:
        for piece, parts in encoded:
            counts, so_far = self.tally.begin(piece), PieceTally()
            for part in parts:
                if counts:
                    tokens, so_far = self.tally.take(piece, part, so_far)
                    self._write(tokens)
                    yield part.read
            if counts:
                self.tally.end(so_far)
                if self._journal is not None:
                    self._journal.add_piece(so_far)
        self.tally.end_source()

    def _next(self) -> TextPiece | None:
        """Come to the next piece that counts."""
        return next((piece for piece in self._pieces if self.tally.begin(piece)), None)

    def _write(self, tokens: Tokens) -> None:
        passed = min(self._passed_over, len(tokens))
        self._passed_over -= passed
        for shard in self._writer.add(tokens[passed:]):
            if self._journal is not None and shard.tokens.tokens == self._writer.shard_tokens:
                self._journal.add_shard(shard)
