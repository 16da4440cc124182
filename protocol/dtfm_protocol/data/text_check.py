"""Check of a job's text before it is tokenized: by its files' sizes, and by a sample of them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtfm_protocol.data.batches import check_enough, tail_tokens
from dtfm_protocol.data.text import NO_TEXT, read_text, text_files
from dtfm_protocol.data.text_size import (
    READ_WHOLE,
    TextSize,
    bytes_of,
    cut_piece,
    most_tokens,
    sampled_files,
    text_size,
)
from dtfm_protocol.data.token_shards import kept_bytes, token_bytes
from dtfm_protocol.data.tokenizer import SMALLEST_BPE, bpe_size, vocabulary_size
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.process.quantities import bytes_in_words

SURE = 1.5
"""How many times too short a text must look by a sample before it is refused for that: its parts may differ."""
HEADS, HEAD_BYTES = 1000, 4096
"""Files of which the beginnings are looked at, evenly spaced over all of them; and bytes of a beginning."""


def check_text_bytes(job: Job) -> None:
    """Check that the job's text is enough for its tokenizer, a step and an evaluation, as far as its files' bytes tell.

    Raises:
        UserError: it cannot be, or there are no such files.
    """
    check_yield(job)
    most = most_tokens(job.data)
    if most is not None:
        check_enough(most, job.training, job.evaluation, "at most ")


def check_yield(job: Job) -> None:
    """Check that there is text, and enough of it for the job's tokenizer, as far as its files' bytes tell.

    Raises:
        UserError: it cannot be, or there are no such files.
    """
    files, size = text_files(job.data), bpe_size(job.data.tokenizer)
    total = sum(map(bytes_of, files))
    if files and not total:
        raise UserError(NO_TEXT.format(job.data.text))
    if files and size is not None and size > total + SMALLEST_BPE:
        raise UserError(
            f'data.tokenizer: "{job.data.tokenizer}" is more than a text of {total} bytes can yield: '
            "give fewer tokens, or more text"
        )


def check_encoding(job: Job, whole: int = READ_WHOLE) -> None:
    """Check that the job's text can be read: all of a short one; of a longer one pieces, and the beginnings of files.

    Args:
        whole: bytes of the longest text of which all is looked at.

    Raises:
        UserError: a file is out of reach or not UTF-8.
    """
    files = text_files(job.data)
    if not files:
        return
    if sum(map(bytes_of, files)) <= whole:
        read_text(job.data)
        return
    for file in files[:: -(-len(files) // HEADS)]:
        cut_piece(file, 0, HEAD_BYTES)
    sampled_files(files)


def check_sample(
    job: Job,
    folder: Path,
    say: Callable[[str], Any] = lambda line: None,
    whole: int = READ_WHOLE,
    free: Callable[[Path], int] = lambda place: shutil.disk_usage(place).free,
) -> TextSize | None:
    """Check by a sample what else stands in the way of tokenizing a long text, and return its estimated size.

    A text that is tokenized in seconds is not looked at: None.

    Args:
        folder: the state folder, on whose disk the tokens are to lie.
        say: a function that is told in a sentence what is done, and what may yet be wrong.
        whole: bytes of the longest text that is not looked at.
        free: returns the bytes that are free on the disk of a folder.

    Raises:
        UserError: the tokenizer gives tokens that it does not have, the text is far too short, or more than a job can
            have, or there is no room for its tokens.
    """
    files = text_files(job.data)
    if sum(map(bytes_of, files)) <= whole:
        return None
    say("Looking at a sample of the text.")
    size = text_size(job.data, whole)
    needed = job.training.tokens + 1 + tail_tokens(job.training, job.evaluation)
    if size.tokens * SURE < needed:
        check_enough(size.tokens, job.training, job.evaluation, "about ")
    if size.smaller_bpe:
        say(
            f"The sample yields {size.smaller_bpe:,} kinds of token at most, and the job asks for "
            f'"{job.data.tokenizer}": if the whole text yields no more, the job is refused once all of it was read.'
        )
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    tokens_size = size.tokens * token_bytes(vocabulary_size(job.data))
    left = free(place) + kept_bytes(folder / "tokens")  # of an earlier start, which are not written again
    if tokens_size > SURE * left:
        raise UserError(
            f"the tokens of the text take about {bytes_in_words(tokens_size)}, and the disk of {folder} has "
            f"{bytes_in_words(left)} left: make room there, or choose another --state-dir"
        )
    return size
