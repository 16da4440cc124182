"""The corpus of a job whose documents stand apart from each other: from what they say to shards of tokens and of marks,
a bin at a time."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dtfm_protocol.checkpoint.transfers import SHARD_LIMIT
from dtfm_protocol.data.contents import Content
from dtfm_protocol.data.corpus_writer import CorpusWriter, EncodedSet
from dtfm_protocol.data.packing import Packer, PackingCounts, closing
from dtfm_protocol.data.sample_encoding import encode_samples
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.resolved_job import Corpus

MOST_BINS = SHARD_LIMIT // 4
"""Bins of the largest such corpus: their numbers of targets are in one file."""


class LaidOutCorpus(NamedTuple):
    """A corpus whose documents stand apart."""

    corpus: Corpus
    counts: PackingCounts
    repeated: int
    """Tokens at its beginning that may come again."""


def lay_out(
    data: Data,
    tokenizer: Any,
    folder: Path,
    parts: tuple[Iterable[Content], Iterable[Content]],
    sequence_length: int,
    same_as: Corpus | None = None,
    sets: Iterable[EncodedSet] = (),
) -> LaidOutCorpus:
    """Lay documents out in bins of `sequence_length`, and write their tokens and marks into `folder`.

    Args:
        parts: what documents say that come more than once, and all others: these do not share bins with those.
        same_as: corpus that the tokens must be; None: any.
        sets: what the job is evaluated on, in bins of the same length.

    Raises:
        UserError: there are no documents of which anything is learned, or more than a job can have; or as
            `CorpusWriter` does.
    """
    packer, repeated = packer_of(data, tokenizer, sequence_length), 0
    writer = CorpusWriter(folder, len(tokenizer), same_as=same_as, sequence_length=sequence_length)
    for part in parts:
        repeated = packer.counts.bins * sequence_length  # those before the last part
        for one in packer.bins(encode_samples(data, tokenizer, part)):
            if packer.counts.bins > MOST_BINS:
                raise UserError(
                    f"data: these are more than the {MOST_BINS:,} sequences of one job: give fewer documents"
                )
            writer.add(*one)
    if not packer.counts.bins:
        raise UserError("data: there is nothing to learn in it: no document has two tokens, or any that is learned")
    for held_out in sets:
        writer.add_set(held_out)
    writer.add(*closing(int(tokenizer.eos_token_id)))
    return LaidOutCorpus(writer.end(), packer.counts, repeated)


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
