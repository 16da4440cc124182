"""The size of the owner's text before it is tokenized: bytes, and tokens, counted where that is cheap."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtfm_protocol.data.text import decoded, read_text, text_files
from dtfm_protocol.data.token_shards import SHARD_BYTES
from dtfm_protocol.data.tokenizer import TooLargeBPE, check_ids, encode, make_tokenizer, vocabulary_size
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Data
from dtfm_protocol.job.resolved_job import MOST_SHARDS
from dtfm_protocol.process.quantities import bytes_in_words

READ_WHOLE = 4 << 20
"""Bytes of the largest text that is tokenized whole, which takes a second or two."""
SAMPLES = 64
"""Pieces that are read of a larger text."""
SAMPLE_BYTES = 1 << 16
"""Bytes of each."""


@dataclass(frozen=True)
class TextSize:
    """The size of a text."""

    documents: int
    bytes: int
    tokens: int
    """Tokens, with the end of text between two documents."""
    how: str = ""
    """How the tokens were estimated, in words; "": they were counted."""
    smaller_bpe: int = 0
    """Size of the largest BPE that the sample yields, where that is less than the job's; 0: it is not, or there is
    none."""


def text_size(data: Data, whole: int = READ_WHOLE) -> TextSize:
    """Measure a job's text.

    Bytes are counted. Tokens are counted where each byte is one, and where the text is short; of a longer one
    `SAMPLES` pieces, evenly spaced over all files, are tokenized (a "bpe:SIZE" is trained on them alone), and the
    whole is taken to have as many tokens a byte.

    Args:
        data: the job's `[data]`, with globs made absolute (`Job.rooted`).
        whole: bytes of the largest text that is tokenized whole.

    Raises:
        UserError: the text or the tokenizer cannot be read or made, or there is more text than a job can name.
    """
    files = text_files(data)
    sizes = [bytes_of(file) for file in files]
    found = _counted(data, read_text(data)) if not files or sum(sizes) <= whole else _sampled(data, files, sizes)
    if found.tokens > MOST_SHARDS * SHARD_BYTES // 4:
        largest = MOST_SHARDS * SHARD_BYTES // (2 if vocabulary_size(data) <= 1 << 16 else 4)
        if found.tokens > largest:
            raise UserError(f"data.text: {found.tokens} tokens are more than the {largest} of one job: give less text")
    return found


def most_tokens(data: Data) -> int | None:
    """Return the most tokens that a job's text can have, by its files' bytes alone; None where these do not tell.

    They do where a tokenizer is made of bytes.

    Raises:
        UserError: a glob matches no file, or a file is out of reach.
    """
    files = text_files(data)
    if not files or data.tokenizer_folder is not None:
        return None
    return sum(map(bytes_of, files)) + len(files) - 1


def _counted(data: Data, documents: Sequence[str]) -> TextSize:
    size = sum(len(document.encode()) for document in documents)
    tokens = size + len(documents) - 1 if data.tokenizer == "bytes" else _tokens(data, documents)
    return TextSize(len(documents), size, tokens)


def _sampled(data: Data, files: Sequence[Path], sizes: Sequence[int]) -> TextSize:
    documents, total = sum(size > 0 for size in sizes), sum(sizes)
    pieces = _pieces(files, sizes)
    if data.tokenizer == "bytes":
        return TextSize(documents, total, total + documents - 1)
    read = sum(len(piece.encode()) for piece in pieces)
    counted, smaller = _sampled_tokens(data, pieces)
    tokens = counted - (len(pieces) - 1)  # less the ends of text between the pieces
    how = f"from a sample of {bytes_in_words(read)}"
    return TextSize(documents, total, round(tokens / read * total) + documents - 1, how, smaller)


def _sampled_tokens(data: Data, pieces: Sequence[str]) -> tuple[int, int]:
    """Count the tokens of the pieces, by a smaller BPE where they yield none of the job's size, as the whole may.

    Returns the tokens, and the size of that BPE, the largest that they yield; 0 where there is none.
    """
    try:
        return _tokens(data, pieces), 0
    except TooLargeBPE as error:
        smaller = data.model_copy(update={"tokenizer": f"bpe:{error.yields}"})
        return _tokens(smaller, pieces), error.yields


def sampled_files(files: Sequence[Path]) -> list[str]:
    """Read the pieces of a long text by which it is judged.

    Raises:
        UserError: a file is out of reach, or a piece is not UTF-8.
    """
    return _pieces(files, [bytes_of(file) for file in files])


def _pieces(files: Sequence[Path], sizes: Sequence[int]) -> list[str]:
    """Read `SAMPLES` pieces at even distances over all files as if they were one; shorter where a file ends."""
    total, pieces = sum(sizes), []
    for number in range(SAMPLES):
        at = number * total // SAMPLES
        place = 0
        while at >= sizes[place]:
            at -= sizes[place]
            place += 1
        pieces.append(cut_piece(files[place], at))
    return [piece for piece in pieces if piece]


def cut_piece(file: Path, at: int, size: int = SAMPLE_BYTES) -> str:
    """Read up to `size` bytes from byte `at` on, without the parts of characters at both ends.

    Raises:
        UserError: the file is out of reach, or not UTF-8 there.
    """
    try:
        with file.open("rb") as stream:
            stream.seek(at)
            data = stream.read(size)
    except OSError as error:
        raise UserError(f"data.text: cannot read {file}: {error.strerror}") from None
    begin = 0
    while at and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:  # a character that began before
        begin += 1
    return decoded(file, data[begin:], at + begin, is_cut=True)


def _tokens(data: Data, documents: Sequence[str]) -> int:
    tokenizer, found = make_tokenizer(data, documents), 0
    for piece in encode(data, tokenizer, documents, lambda line: None):
        check_ids(piece, len(tokenizer))
        found += len(piece)
    return found


def bytes_of(file: Path) -> int:
    """Return the size of a file.

    Raises:
        UserError: it is out of reach.
    """
    try:
        return file.stat().st_size
    except OSError as error:
        raise UserError(f"data.text: cannot read {file}: {error.strerror}") from None
