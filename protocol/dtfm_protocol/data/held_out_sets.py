"""The sets on which a job is evaluated, as tokens: each in whole windows, apart from what is trained on."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dtfm_protocol.data.chat_template import ChatTemplate
from dtfm_protocol.data.corpus_writer import EncodedSet
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.laid_out_corpus import packer_of
from dtfm_protocol.data.piece_encoder import PieceEncoder
from dtfm_protocol.data.sample_encoding import encode_samples
from dtfm_protocol.data.source_files import files_read, sources_of
from dtfm_protocol.data.token_shards import Tokens
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.evaluation_set import EvaluationSet

TEXTS_AT_ONCE = 64
"""Documents that are encoded at a time: of a set that has more than is asked for, few are for nothing."""


def encode_sets(
    data: Data, sets: Sequence[EvaluationSet], tokenizer: Any, sequence_length: int, sequences: int, seed: int = 0
) -> list[EncodedSet]:
    """Encode up to `sequences` windows of each set, from its beginning on, as the job's own documents are.

    Args:
        data: the job's `[data]`, whose tokenizer, chat template and packing hold here, too.
        seed: the job's, which draws documents of sources with a weight.

    Raises:
        UserError: a set has too little text, or as `Documents` does; it names the set by its key.
    """
    found = list[EncodedSet]()
    for place, one in enumerate(sets):
        try:
            found.append(_encoded(data, one, tokenizer, sequence_length, sequences, seed))
        except UserError as error:
            raise one.named(error, place) from None
    return found


def check_sets(data: Data, sets: Sequence[EvaluationSet]) -> None:
    """Check that the files of all sets are there, and of a kind that can stand beside the job's own text, and that
    messages have a chat template.

    Raises:
        UserError: names the path that leads to nothing, or the set that is of another kind, or lacks a template.
    """
    for place, one in enumerate(sets):
        documents = one.documents(data)
        if documents.is_laid_out and not data.is_laid_out:
            raise UserError(
                f"evaluation.sets.{place}: {one.name} has conversations or completions, and the text that is trained "
                "on is one stream: give data.packing = true"
            )
        try:
            sources_of(documents)
            ChatTemplate.of_job(documents)
        except UserError as error:
            raise one.named(error, place) from None


def any_messages(sets: Sequence[EvaluationSet]) -> bool:
    """Whether any of the sets has messages, for which a chat template is asked for."""
    return any(source.kind == "messages" for one in sets for source in one.sources or ())


def set_files(data: Data, sets: Sequence[EvaluationSet]) -> list[Path]:
    """List the files that all sets are made from; raises as `check_sets` does."""
    check_sets(data, sets)
    return [file for one in sets for file in files_read(one.documents(data))]


def _encoded(data: Data, one: EvaluationSet, tokenizer: Any, length: int, sequences: int, seed: int) -> EncodedSet:
    documents = Documents(one.documents(data), seed)
    if data.is_laid_out:
        packer = packer_of(data, tokenizer, length)
        samples = encode_samples(data, tokenizer, (document.content for document in documents))
        bins = list(islice(packer.bins(samples), sequences))
        if not bins:
            raise UserError("data: there is nothing to learn in it: no document has two tokens, or any that is learned")
        tokens, marks = (np.concatenate(parts) for parts in zip(*bins, strict=True))
        return EncodedSet(one.name, len(bins), tokens, marks)
    encoder, parts, count = PieceEncoder(data, tokenizer), list[Tokens](), 0
    for texts in _batches(documents):
        part = encoder.of_texts(texts, 0.0).tokens
        parts.append(part if parts else part[1:])
        count += len(parts[-1])
        if count > sequences * length:
            break
    windows = min(sequences, (count - 1) // length)
    if windows < 1:
        raise UserError(f"data: {one.name} has {count} tokens, and a sequence needs {length + 1}: give more text")
    return EncodedSet(one.name, windows, np.concatenate(parts)[: windows * length + 1], None)


def _batches(documents: Documents) -> Iterator[list[str]]:
    texts = (document.text for document in documents)
    while batch := list(islice(texts, TEXTS_AT_ONCE)):
        yield batch
