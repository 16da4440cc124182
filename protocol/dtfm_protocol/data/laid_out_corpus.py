"""The corpus of a job whose documents stand apart from each other: from pieces of text to shards of tokens and of
marks, from where an earlier run was broken off."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import Any

from dtfm_protocol.checkpoint.transfers import SHARD_LIMIT
from dtfm_protocol.data.corpus_writer import CorpusWriter, WrittenShard
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.encoding_pool import Encoded, encoding
from dtfm_protocol.data.layout_state import LayoutState
from dtfm_protocol.data.packing import Bin, Packer, PackingCounts
from dtfm_protocol.data.piece_encoder import PieceEncoder
from dtfm_protocol.data.preparing_journal import NotedState, PreparingJournal
from dtfm_protocol.data.sample_encoding import Sample
from dtfm_protocol.data.text_pieces import text_pieces
from dtfm_protocol.data.text_stream import CHECKED_AT_ONCE
from dtfm_protocol.data.text_tally import PieceTally, TextTally
from dtfm_protocol.data.tokenizer import as_written
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data

MOST_BINS = SHARD_LIMIT // 4
"""Bins of the largest such corpus: their numbers of targets are in one file."""
STATE_BYTES = 4 << 20
"""Bytes of text after which the state is noted again: some seconds of work, which are lost where it is broken off."""


class LaidOutStream:
    """The stream of documents into bins of a sequence's length, and of these into a writer.

    What is written depends on the text alone: not on the number of processes, and not on how often it was broken off.
    Going on begins after the last piece whose state was noted. Documents that come more than once do not share bins
    with others.
    """

    def __init__(
        self,
        data: Data,
        documents: Documents,
        tokenizer: Any,
        seed: int,
        writer: CorpusWriter,
        journal: PreparingJournal | None,
        sequence_length: int,
    ) -> None:
        """Read nothing yet.

        Raises:
            UserError: sequences are too short for any document.
        """
        self._data, self._documents, self._tokenizer = data, documents, tokenizer
        self._writer, self._journal, self._length = writer, journal, sequence_length
        self._packer = packer_of(data, tokenizer, sequence_length)
        self._pieces = text_pieces(documents.sources, seed)
        self._new: list[WrittenShard] = []
        """Shards that were written since the state was noted."""
        self._noted_at = 0.0
        """Bytes that were read until then."""
        self._repeated: int | None = None
        self.tally = TextTally(seed)

    @property
    def repeated(self) -> int:
        """Tokens at the corpus's beginning that may come again."""
        return self._repeated or 0

    @property
    def words(self) -> list[str]:
        """What people should know of how documents were laid out, a sentence each."""
        return counts_in_words(self._packer.counts)

    def resume(self) -> bool:
        """Take up the newest state that the journal has, if all before it is still there and whole; whether there was
        one.

        Raises:
            UserError: the disk is full or cannot be written, or what is there is of another corpus than it must be.
        """
        journal, writer = self._journal, self._writer
        if journal is None:
            return False
        noted = None
        if journal.is_begun and journal.shard_tokens == writer.shard_tokens:
            noted = next(filter(self._takes_up, reversed(journal.states)), None)
        if noted is None:
            journal.begin(as_written(self._data, self._tokenizer), writer.shard_tokens)
        else:
            journal.cut_back(noted.pieces, noted.shards, noted)
        journal.pieces, journal.shards, journal.states = [], [], []
        return noted is not None

    def run(self, workers: int) -> Iterator[float]:
        """Write what is left, and yield the bytes of the text that were read, as they are.

        Args:
            workers: number of processes; up to 1: this one alone.

        Raises:
            UserError: a row cannot be read, a source has no text, nothing is learned of any document, there are more
                than a job can have, or as the writer does.
        """
        if self._documents.manual:
            part = PieceEncoder(self._data, self._tokenizer).of_texts(self._documents.manual, self._documents.bytes)
            self._lay_out(part.samples())
            yield part.read
        else:
            with encoding(self._data, self._tokenizer, self._pieces, workers) as encoded:
                yield from self._take(encoded)
        self.tally.end_source()
        self._end_repeated()
        self._write(self._packer.closed())
        if not self._packer.counts.bins:
            raise UserError("data: there is nothing to learn in it: no document has two tokens, or any that is learned")

    def _take(self, encoded: Iterator[Encoded]) -> Iterator[float]:
        for piece, parts in encoded:
            counts, so_far = self.tally.begin(piece), PieceTally()
            if counts and piece.source.source.weight <= 1:
                self._end_repeated()
            for part in parts:
                if counts:
                    is_there = self.tally.are_there(piece, len(part.lengths), so_far)
                    tokens = self._lay_out(compress(part.samples(), is_there.tolist()))
                    so_far = self.tally.counted(piece, part, so_far, is_there, tokens)
                    yield part.read
            if counts:
                self.tally.end(so_far)
                if self._journal is not None:
                    self._journal.add_piece(so_far)
                    if self.tally.read >= self._noted_at + STATE_BYTES:
                        self._note(self._journal)

    def _lay_out(self, samples: Iterable[Sample]) -> int:
        """Lay documents out, and return the number of their tokens."""
        count = 0
        for sample in samples:
            count += len(sample.tokens)
            self._write(self._packer.filled([sample]))
        return count

    def _end_repeated(self) -> None:
        """Close the bins of documents that come more than once, after the last of these."""
        if self._repeated is None:
            self._write(self._packer.closed())
            self._repeated = self._packer.counts.bins * self._length

    def _write(self, bins: Iterable[Bin]) -> None:
        for one in bins:
            if self._packer.counts.bins > MOST_BINS:
                raise UserError(
                    f"data: these are more than the {MOST_BINS:,} sequences of one job: give fewer documents"
                )
            for shard in self._writer.add(*one):
                if self._journal is not None and shard.tokens.tokens == self._writer.shard_tokens:
                    self._journal.add_shard(shard)
                    self._new.append(shard)

    def _note(self, journal: PreparingJournal) -> None:
        self._writer.make_last(self._new)
        packer = self._packer
        journal.add_state(
            LayoutState(packer.counts, packer.open_bins(), self._writer.left(), self._repeated).to_bytes()
        )
        self._new, self._noted_at = [], self.tally.read

    def _takes_up(self, noted: NotedState) -> bool:
        """Take up a state; whether it and the shards before it are there and whole."""
        journal, writer = self._journal, self._writer
        assert journal is not None
        data, shards = journal.state(noted), journal.shards[: noted.shards]
        with ThreadPoolExecutor(CHECKED_AT_ONCE) as threads:
            if data is None or not all(threads.map(writer.is_whole, shards)):
                return False
        if not all(map(writer.has_before, shards)):
            raise ValueError("a shard that is whole was not taken")
        state = LayoutState.of_bytes(data)
        writer.add(*state.left)
        self._packer.go_on(state.bins, state.counts)
        self._repeated = state.repeated
        for recorded in journal.pieces[: noted.pieces]:
            next((piece for piece in self._pieces if self.tally.begin(piece)), None)
            self.tally.end(recorded)
        self._noted_at = self.tally.read
        return True


def packer_of(data: Data, tokenizer: Any, sequence_length: int) -> Packer:
    """Return what lays a job's documents out.

    Raises:
        UserError: sequences are too short for any.
    """
    if sequence_length < 2:
        raise UserError("training.sequence_length: documents that stand apart need 2 tokens at least")
    return Packer(sequence_length, int(tokenizer.eos_token_id), shared=data.packing)


def counts_in_words(counts: PackingCounts) -> list[str]:
    """Return what people should know of how documents were laid out, a sentence each."""
    said = []
    if counts.cut:
        said.append(
            f"Cut off {_in_count(counts.cut, 'conversation or completion', 'conversations or completions')} at "
            f"training.sequence_length: the longest has {counts.longest:,} tokens."
        )
    if counts.empty:
        said.append(
            f"Left out {_in_count(counts.empty, 'document', 'documents')} of which nothing is learned: what is learned "
            "comes after training.sequence_length, or there is too little of it."
        )
    return said


def _in_count(number: int, one: str, many: str) -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many}"
