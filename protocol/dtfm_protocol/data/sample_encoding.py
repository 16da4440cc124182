"""The way from what documents say to samples: tokens, and which of them are learned."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.contents import Content
from dtfm_protocol.data.token_shards import Tokens
from dtfm_protocol.data.tokenizer import CHARACTERS_AT_ONCE, END_OF_TEXT, encode_batch
from dtfm_protocol.job.data_table import Data


class Sample(NamedTuple):
    """A document as tokens."""

    tokens: Tokens
    """Shape [tokens]."""
    is_target: npt.NDArray[np.bool_]
    """Which of them are learned, the first aside, which nothing foretells: [tokens]."""
    is_whole: bool
    """Whether it makes no sense in pieces, as a conversation does not; plain text does."""


class Placed(NamedTuple):
    """The tokens of a text that a chat template has written, and the characters that each is of."""

    tokens: Tokens
    """Shape [tokens]."""
    first: npt.NDArray[np.int64]
    """The first character of each: [tokens]."""
    after: npt.NDArray[np.int64]
    """The character after the last one of each: [tokens]."""


def encode_samples(data: Data, tokenizer: Any, contents: Iterable[Content]) -> Iterator[Sample]:
    """Encode documents one by one.

    Plain text, and a completion, end with the end of text; what a chat template writes is left as it is, and a token of
    it is learned where one of its characters is. Prompt and completion are encoded apart, as whoever asks the model has
    only the prompt.
    """
    end = int(tokenizer.eos_token_id)
    for batch in _batches(contents):
        # What a template has written names special tokens; in plain text their names are text like any other.
        written = [content.text for content in batch if content.is_rendered]
        spoken = [text for content in batch if not content.is_rendered for text in _parts(content)]
        placed, plain = _placed(data, tokenizer, written), iter(encode_batch(data, tokenizer, spoken))
        for content in batch:
            if content.is_rendered:
                yield _chat(content, next(placed))
            else:
                yield _text([next(plain) for _ in _parts(content)], end)


def _parts(content: Content) -> list[str]:
    """Return the text of plain text, or prompt and completion."""
    if content.learned is None:
        return [content.text]
    ((first, _),) = content.learned
    return [content.text[:first], content.text[first:]]


def _text(parts: list[npt.NDArray[np.integer[Any]]], end: int) -> Sample:
    *prompt, learned = parts
    tokens = np.concatenate([*prompt, learned, [end]]).astype(np.int64)
    return Sample(tokens, np.arange(len(tokens)) >= sum(map(len, prompt)), bool(prompt))


def _chat(content: Content, placed: Placed) -> Sample:
    is_target = np.zeros(len(placed.tokens), dtype=bool)
    for first, after in content.learned or ():
        # All from the first to the last: blanks within may be of no token.
        inside = np.flatnonzero((placed.first < after) & (placed.after > first))
        if len(inside):
            is_target[inside[0] : inside[-1] + 1] = True
    return Sample(placed.tokens, is_target, True)


def _placed(data: Data, tokenizer: Any, texts: list[str]) -> Iterator[Placed]:
    """Encode what a chat template has written."""
    if data.tokenizer == "bytes":
        yield from (_bytes_of(text, int(tokenizer.eos_token_id)) for text in texts)
        return
    backend = tokenizer.backend_tokenizer
    before = backend.encode_special_tokens
    backend.encode_special_tokens = False
    try:
        encodings = backend.encode_batch(texts, add_special_tokens=False)
    finally:
        backend.encode_special_tokens = before
    for encoding in encodings:
        offsets = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        yield Placed(np.asarray(encoding.ids, dtype=np.int64), offsets[:, 0], offsets[:, 1])


def _bytes_of(text: str, end: int) -> Placed:
    """Return what the tokenizer "bytes" says, too, a hundred times slower."""
    tokens, first, after = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]]()
    at = 0
    for place, piece in enumerate(text.split(END_OF_TEXT)):
        if place:
            tokens.append(np.array([end]))
            first.append(np.array([at]))
            at += len(END_OF_TEXT)
            after.append(np.array([at]))
        codes = np.frombuffer(piece.encode("utf-32-le"), dtype=np.uint32)
        sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
        places = np.repeat(np.arange(at, at + len(codes)), sizes)
        tokens.append(np.frombuffer(piece.encode(), dtype=np.uint8).astype(np.int64))
        first.append(places)
        after.append(places + 1)
        at += len(codes)
    return Placed(np.concatenate(tokens), np.concatenate(first), np.concatenate(after))


def _batches(contents: Iterable[Content]) -> Iterator[list[Content]]:
    batch: list[Content] = []
    size = 0
    for content in contents:
        batch.append(content)
        size += len(content.text)
        if size >= CHARACTERS_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
