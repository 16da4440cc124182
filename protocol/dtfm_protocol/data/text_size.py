"""The size of the owner's text before it is tokenized: bytes, and tokens, counted where that is cheap."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from dtfm_protocol.data.chat_template import ChatTemplate
from dtfm_protocol.data.contents import Content
from dtfm_protocol.data.documents import Documents
from dtfm_protocol.data.laid_out_corpus import packer_of
from dtfm_protocol.data.sample_encoding import encode_samples
from dtfm_protocol.data.source_files import SourceFiles, sources_of
from dtfm_protocol.data.text_sample import SourceSample, samples_of
from dtfm_protocol.data.token_shards import SHARD_BYTES
from dtfm_protocol.data.tokenizer import TooLargeBPE, check_ids, encode, make_tokenizer, vocabulary_size
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.resolved_job import CHAPTER_SHARDS, MOST_CHAPTERS
from dtfm_protocol.process.quantities import bytes_in_words

MOST_BYTES = MOST_CHAPTERS * CHAPTER_SHARDS * SHARD_BYTES
"""Bytes of the tokens that a job can name."""
READ_WHOLE = 4 << 20
"""Bytes of the largest text that is tokenized whole, which takes a second or two."""


@dataclass(frozen=True)
class LayoutSize:
    """The size of a text whose documents stand apart, in sequences."""

    targets: int
    """Tokens that are learned."""
    padding: float
    """Share of tokens that fill sequences up."""
    cut: int
    """Conversations and completions of which only the beginning is there."""
    left_out: int
    """Documents of which nothing is learned."""


@dataclass(frozen=True)
class TextSize:
    """The size of a text, all repetitions counted."""

    documents: int
    bytes: int
    """Bytes in UTF-8."""
    tokens: int
    """Tokens, with the end of text between two documents; of such as stand apart, those of all sequences."""
    how: str = ""
    """How the tokens were estimated, in words, and of sources other than text files the rest, too; "": all was
    counted."""
    smaller_bpe: int = 0
    """Size of the largest BPE that the sample yields, where that is less than the job's; 0: it is not, or there is
    none."""
    layout: LayoutSize | None = None
    """None: the documents are one stream."""


def text_size(data: Data, whole: int = READ_WHOLE, *, seed: int = 0, sequence_length: int = 0) -> TextSize:
    """Measure a job's text.

    A short text is counted. Of a longer one documents at `SAMPLES` places, evenly spaced over all files, are tokenized
    (a "bpe:SIZE" is trained on them alone), and the whole is taken to have as many tokens a byte, and other sources
    than text files as many documents and bytes of text. Text files are counted where each byte is a token.

    Args:
        data: the job's `[data]`, with paths made absolute (`Job.rooted`).
        whole: bytes of the largest text that is tokenized whole.
        seed: the job's, which draws documents of sources with a weight.
        sequence_length: the job's, in whose sequences documents are laid out that stand apart.

    Raises:
        UserError: the text or the tokenizer cannot be read or made, or there is more text than a job can name.
    """
    sources = sources_of(data)
    is_short = sum(one.bytes for one in sources) <= whole
    if data.tokenizer == "bytes" and _is_counted(sources) and (most := most_tokens(data)) is not None:
        _check_few_enough(data, most)
    if is_short and data.is_laid_out:
        found = _laid_out(data, [one.content for one in Documents(data, seed)], sequence_length)
    elif is_short:
        found = _counted(data, [one.text for one in Documents(data, seed)])
    else:
        found = _sampled(data, sources, sequence_length)
    _check_few_enough(data, found.tokens)
    return found


def _check_few_enough(data: Data, tokens: int) -> None:
    """Check that a job can name so many tokens.

    Raises:
        UserError: it cannot.
    """
    if tokens > MOST_BYTES // 4:
        largest = MOST_BYTES // (2 if vocabulary_size(data) <= 1 << 16 else 4)
        if tokens > largest:
            raise UserError(f"data: {tokens} tokens are more than the {largest} of one job: give less text")


def most_tokens(data: Data) -> int | None:
    """Return the most tokens that a job's text can have, by its files' bytes alone; None where these do not tell.

    They do where a tokenizer is made of bytes, and all sources are text files.

    Raises:
        UserError: a path leads to no file, or a file is out of reach.
    """
    sources = sources_of(data)
    if not sources or data.tokenizer_folder is not None or any(one.source.form != "text" for one in sources):
        return None
    if data.is_laid_out:
        return None
    return sum(ceil(one.source.weight) * (one.bytes + len(one.files)) for one in sources) - 1


def _is_counted(sources: Sequence[SourceFiles]) -> bool:
    """Whether the bytes of files are those of documents, and each file is there a known number of times."""
    return all(one.source.form == "text" and one.source.weight.is_integer() for one in sources)


def _counted(data: Data, documents: Sequence[str]) -> TextSize:
    size = sum(len(document.encode()) for document in documents)
    if data.tokenizer == "bytes":
        return TextSize(len(documents), size, size + len(documents) - 1)
    return TextSize(len(documents), size, _tokens(data, make_tokenizer(data, documents), documents))


def _laid_out(data: Data, contents: Sequence[Content], sequence_length: int) -> TextSize:
    size, texts = sum(len(content.text.encode()) for content in contents), [content.text for content in contents]
    tokenizer = make_tokenizer(data, texts)
    packer = packer_of(data, tokenizer, sequence_length)
    for _ in packer.bins(encode_samples(data, tokenizer, contents)):
        pass
    counts = packer.counts
    tokens = counts.bins * sequence_length
    layout = LayoutSize(counts.targets, counts.padding / max(1, tokens), counts.cut, counts.empty)
    return TextSize(len(contents), size, tokens + 1, layout=layout)


def _sampled(data: Data, sources: Sequence[SourceFiles], sequence_length: int) -> TextSize:
    samples = samples_of(sources, ChatTemplate.of_job(data))
    weights = [one.source.weight for one in sources]
    documents = _weighted(weights, [one.documents for one in samples])
    total = _weighted(weights, [one.total for one in samples])
    how = f"from a sample of {bytes_in_words(sum(one.bytes for one in samples))}"
    if data.is_laid_out:
        return _scaled(data, sources, samples, sequence_length, TextSize(documents, total, 0, how))
    if data.tokenizer == "bytes":
        return TextSize(documents, total, total + documents - 1, "" if _is_counted(sources) else how)
    tokenizer, smaller = _tokenizer(data, [text for one in samples for text in one.texts])
    tokens = _weighted(weights, [_tokens_of(data, tokenizer, one) for one in samples])
    return TextSize(documents, total, tokens + documents - 1, how, smaller)


def _scaled(
    data: Data, sources: Sequence[SourceFiles], samples: Sequence[SourceSample], sequence_length: int, found: TextSize
) -> TextSize:
    """Return the size of a long text whose documents stand apart, by laying samples of it out."""
    tokenizer, smaller = _tokenizer(data, [text for one in samples for text in one.texts])
    bins = targets = padding = cut = empty = 0.0
    for source, sample in zip(sources, samples, strict=True):
        packer = packer_of(data, tokenizer, sequence_length)
        for _ in packer.bins(encode_samples(data, tokenizer, sample.contents)):
            pass
        counts, scale = packer.counts, source.source.weight * sample.total / max(1, sample.bytes)
        bins, targets, padding = (
            bins + scale * counts.bins,
            targets + scale * counts.targets,
            padding + scale * counts.padding,
        )
        cut, empty = cut + scale * counts.cut, empty + scale * counts.empty
    tokens = round(bins) * sequence_length
    layout = LayoutSize(round(targets), padding / max(1, tokens), round(cut), round(empty))
    return replace(found, tokens=tokens + 1, smaller_bpe=smaller, layout=layout)


def _weighted(weights: Sequence[float], amounts: Sequence[float]) -> int:
    return round(sum(weight * amount for weight, amount in zip(weights, amounts, strict=True)))


def _tokens_of(data: Data, tokenizer: Any, sample: SourceSample) -> float:
    """Estimate the tokens of a source's documents, without what stands between them."""
    if not sample.bytes:
        return 0.0
    counted = _tokens(data, tokenizer, sample.texts) - (len(sample.texts) - 1)
    return counted / sample.bytes * sample.total


def _tokenizer(data: Data, pieces: Sequence[str]) -> tuple[Any, int]:
    """Make the tokenizer of pieces; a smaller BPE where they yield none of the job's size, as the whole may.

    Returns the tokenizer, and the size of that BPE, the largest that they yield; 0 where there is none.
    """
    try:
        return make_tokenizer(data, pieces), 0
    except TooLargeBPE as error:
        smaller = data.model_copy(update={"tokenizer": f"bpe:{error.yields}"})
        return make_tokenizer(smaller, pieces), error.yields


def _tokens(data: Data, tokenizer: Any, documents: Sequence[str]) -> int:
    found = 0
    for piece in encode(data, tokenizer, documents):
        check_ids(piece, len(tokenizer))
        found += len(piece)
    return found
