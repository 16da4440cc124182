"""The way from a job's documents to its token shards, with words on how far it is."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from dtfm_protocol.data.contents import Content
from dtfm_protocol.data.corpus_writer import CorpusWriter
from dtfm_protocol.data.documents import Document, Documents
from dtfm_protocol.data.held_out_sets import encode_sets
from dtfm_protocol.data.laid_out_corpus import LaidOutStream
from dtfm_protocol.data.packing import closing
from dtfm_protocol.data.preparing_journal import PreparingJournal
from dtfm_protocol.data.text_stream import TextStream
from dtfm_protocol.data.token_shards import SHARD_BYTES
from dtfm_protocol.data.tokenizer import bpe_size, make_tokenizer
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.evaluation_set import EvaluationSet
from dtfm_protocol.job.resolved_job import CHAPTER_SHARDS, Corpus
from dtfm_protocol.process.quantities import bytes_in_words, time_in_words

Progress = Callable[[str], None]
"""A function that is told in a sentence what is being done, now and then."""
BYTES_A_WORKER = 8 << 20
"""Bytes of text for which it pays to start one more process, which takes a second."""
SAID_SECONDS = 2.0
"""Pause between two words on how far it is."""


class Tokenized(NamedTuple):
    """A job's documents as tokens."""

    corpus: Corpus
    tokenizer: Any
    """A tokenizer of `transformers`."""
    repeated: int
    """Tokens at the corpus's beginning that are of sources with a weight above 1, so that they may come again."""


def tokenize(
    data: Data,
    folder: Path,
    progress: Progress = lambda line: None,
    same_as: Corpus | None = None,
    *,
    seed: int = 0,
    sequence_length: int = 0,
    sets: Sequence[EvaluationSet] = (),
    set_sequences: int = 0,
    workers: int | None = None,
    journal: PreparingJournal | None = None,
    shard_bytes: int = SHARD_BYTES,
    chapter_shards: int = CHAPTER_SHARDS,
) -> Tokenized:
    """Read the job's documents, make its tokenizer and write its shards into `folder`.

    Args:
        same_as: corpus that the tokens must be; None: any.
        seed: the job's (`training.seed`), which draws documents of sources with a weight.
        sequence_length: the job's, in whose sequences documents are laid out that stand apart; of a stream it is not
            asked for.
        sets: those on which the job is evaluated, which come behind its text.
        set_sequences: sequences of each set, at most.
        workers: number of processes that work, of which each number gives the same; None: one for each core, or where
            the text is short none but this one.
        journal: where is noted what has been done, to be gone on with; None: nowhere.
        shard_bytes: bytes of a shard.
        chapter_shards: shards of a chapter.

    Raises:
        UserError: what `Documents`, `make_tokenizer`, `encode_sets`, `CorpusWriter`, `TextStream` and `LaidOutStream`
            raise.
    """
    progress("Reading the text.")
    documents = Documents(data, seed)
    total = documents.bytes
    trained = journal.tokenizer if journal is not None else ""
    if (size := bpe_size(data.tokenizer)) and not trained:
        progress(f"Working out {size:,} kinds of token from the text: of a long one, that takes minutes.")
    tokenizer = make_tokenizer(data, Told("Reading the text for it", total, progress).texts(documents), trained)
    held_out = encode_sets(data, sets, tokenizer, sequence_length, set_sequences, seed)
    writer = CorpusWriter(
        folder,
        len(tokenizer),
        shard_bytes=shard_bytes,
        chapter_shards=chapter_shards,
        same_as=same_as,
        sequence_length=sequence_length if data.is_laid_out else None,
    )
    stream: TextStream | LaidOutStream
    if data.is_laid_out:
        stream = LaidOutStream(data, documents, tokenizer, seed, writer, journal, sequence_length)
    else:
        stream = TextStream(data, documents, tokenizer, seed, writer, journal)
    if stream.resume():
        progress(f"Going on where preparing was broken off, after {bytes_in_words(stream.tally.read)} of the text.")
    count = workers if workers is not None else min(_cores(), ceil(total / BYTES_A_WORKER))
    done, told = stream.tally.read, None
    for read in stream.run(count):
        if told is not None:
            told.worked(read)
        else:  # the pace is that of the work, without the start of the workers
            told = Told("Turning the text into tokens", total, progress, done=done + read)
    for one in held_out:
        writer.add_set(one)
    if data.is_laid_out:
        writer.add(*closing(int(tokenizer.eos_token_id)))
    corpus = writer.end()
    for line in stream.words:
        progress(line)
    if stream.tally.skipped.rows:
        progress(str(stream.tally.skipped))
    return Tokenized(corpus, tokenizer, stream.repeated)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Told:
    """What people are told of a reading of the documents: every few seconds how far it is, and how long it takes."""

    def __init__(
        self,
        what: str,
        total: float,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        done: float = 0.0,
    ) -> None:
        """Begin.

        Args:
            what: what is done, as a sentence begins.
            total: bytes that there are to read.
            clock: gives seconds.
            done: bytes of them that were read before, at another pace.
        """
        self._what, self._total, self._progress, self._clock = what, total, progress, clock
        self._begun = self._said = clock()
        self._done = self._done_before = done

    def texts(self, documents: Iterable[Document]) -> Iterator[str]:
        """Hand on the texts of documents, and say how far it is once one was worked on."""
        return (content.text for content in self.contents(documents))

    def contents(self, documents: Iterable[Document]) -> Iterator[Content]:
        """Hand on what documents say in the same way."""
        for document in documents:
            yield document.content
            self.worked(document.read)

    def worked(self, read: float) -> None:
        """Count bytes that were read and worked on, and say how far it is."""
        self._done += read
        now = self._clock()
        if self._done_before < self._done < self._total and now - self._said >= SAID_SECONDS:
            self._said = now
            self._progress(self._far(now - self._begun))

    def _far(self, seconds: float) -> str:
        left = time_in_words(seconds * (self._total - self._done) / (self._done - self._done_before))
        return (
            f"{self._what}: {bytes_in_words(self._done)} of {bytes_in_words(self._total)} "
            f"({100 * self._done / self._total:.0f} %), {'' if left.startswith('less') else 'about '}{left} left."
        )
