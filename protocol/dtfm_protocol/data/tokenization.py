"""The way from a job's documents to its token shards, with words on how far it is."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dtfm_protocol.data.contents import Content
from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.documents import Document, Documents
from dtfm_protocol.data.laid_out_corpus import counts_in_words, lay_out
from dtfm_protocol.data.token_shards import Tokens
from dtfm_protocol.data.tokenizer import bpe_size, encode, make_tokenizer
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.resolved_job import Corpus
from dtfm_protocol.process.quantities import bytes_in_words, time_in_words

Progress = Callable[[str], None]
"""A function that is told in a sentence what is being done, now and then."""
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
) -> Tokenized:
    """Read the job's documents, make its tokenizer and write its shards into `folder`.

    Args:
        same_as: corpus that the tokens must be; None: any.
        seed: the job's (`training.seed`), which draws documents of sources with a weight.
        sequence_length: the job's, in whose sequences documents are laid out that stand apart; of a stream it is not
            asked for.

    Raises:
        UserError: what `Documents`, `make_tokenizer`, `write_shards` and `lay_out` raise.
    """
    progress("Reading the text.")
    documents = Documents(data, seed)
    total = documents.bytes
    if size := bpe_size(data.tokenizer):
        progress(f"Working out {size:,} kinds of token from the text: of a long one, that takes minutes.")
    tokenizer = make_tokenizer(data, Told("Reading the text for it", total, progress).texts(documents))
    told, repeated = Told("Turning the text into tokens", total, progress), 0
    if data.is_laid_out:
        parts = told.contents(documents.repeated()), told.contents(documents.others())
        made = lay_out(data, tokenizer, folder, parts, sequence_length, same_as)
        for line in (*counts_in_words(made.counts), *([str(documents.skipped)] if documents.skipped.rows else [])):
            progress(line)
        return Tokenized(made.corpus, tokenizer, made.repeated)

    def tokens() -> Iterator[Tokens]:
        nonlocal repeated
        for piece in encode(data, tokenizer, told.texts(documents.repeated())):
            repeated += len(piece)
            yield piece
        yield from encode(data, tokenizer, told.texts(documents.others()), goes_on=repeated > 0)

    corpus = write_shards(folder, tokens(), len(tokenizer), same_as=same_as)
    if documents.skipped.rows:
        progress(str(documents.skipped))
    return Tokenized(corpus, tokenizer, repeated)


class Told:
    """What people are told of a reading of the documents: every few seconds how far it is, and how long it takes."""

    def __init__(
        self, what: str, total: float, progress: Progress, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin.

        Args:
            what: what is done, as a sentence begins.
            total: bytes that there are to read.
            clock: gives seconds.
        """
        self._what, self._total, self._progress, self._clock = what, total, progress, clock
        self._begun = self._said = clock()
        self._done = 0.0

    def texts(self, documents: Iterable[Document]) -> Iterator[str]:
        """Hand on the texts of documents, and say how far it is once one was worked on."""
        return (content.text for content in self.contents(documents))

    def contents(self, documents: Iterable[Document]) -> Iterator[Content]:
        """Hand on what documents say in the same way."""
        for document in documents:
            yield document.content
            self._done += document.read
            now = self._clock()
            if self._done < self._total and now - self._said >= SAID_SECONDS:
                self._said = now
                self._progress(self._far(now - self._begun))

    def _far(self, seconds: float) -> str:
        left = time_in_words(seconds * (self._total - self._done) / self._done)
        return (
            f"{self._what}: {bytes_in_words(self._done)} of {bytes_in_words(self._total)} "
            f"({100 * self._done / self._total:.0f} %), {'' if left.startswith('less') else 'about '}{left} left."
        )
