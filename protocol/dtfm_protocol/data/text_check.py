"""Check of a job's text before it is tokenized: by its files' sizes, and by a sample of them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtfm_protocol.data.arrow_tables import check_pyarrow
from dtfm_protocol.data.batches import check_enough, tail_tokens
from dtfm_protocol.data.chat_template import ChatTemplate, check_offsets
from dtfm_protocol.data.documents import NO_TEXT, Documents
from dtfm_protocol.data.held_out_sets import any_messages, check_sets
from dtfm_protocol.data.hub_sizes import check_datasets
from dtfm_protocol.data.source_files import sources_of
from dtfm_protocol.data.text_sample import read_piece, samples_of
from dtfm_protocol.data.text_size import READ_WHOLE, TextSize, most_tokens, text_size
from dtfm_protocol.data.token_shards import kept_bytes, token_bytes
from dtfm_protocol.data.tokenizer import SMALLEST_BPE, bpe_size, load, vocabulary_size
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
    """Check that there is text, that this machine has what reads it, that messages have a chat template, and that there
    is enough for the job's tokenizer, as far as its files' bytes tell.

    Raises:
        UserError: it cannot be, or there are no such files.
    """
    if job.data.chat_template is not None and not (job.data.has_messages or any_messages(job.evaluation.sets)):
        raise UserError('data.chat_template: no source is of kind = "messages": remove it')
    ChatTemplate.of_job(job.data)
    check_sets(job.data, job.evaluation.sets)
    if job.data.is_laid_out and job.data.tokenizer_folder is not None:
        check_offsets(load(job.data.tokenizer_folder), "data")
    sources, size = sources_of(job.data), bpe_size(job.data.tokenizer)
    for source in sources:
        if source.source.form in ("parquet", "dataset"):
            check_pyarrow(source.key)
        elif source.source.form == "hub":
            check_datasets(source.key)
        if not source.bytes:
            raise UserError(NO_TEXT.format(source.key, source.source.path))
    total = sum(source.bytes for source in sources)
    is_bounded = sources and all(source.source.form == "text" for source in sources)
    if is_bounded and size is not None and size > total + SMALLEST_BPE:
        raise UserError(
            f'data.tokenizer: "{job.data.tokenizer}" is more than a text of {total} bytes can yield: '
            "give fewer tokens, or more text"
        )
    if sources and job.evaluation.takes_tail and all(source.source.weight > 1 for source in sources):
        raise UserError(
            "data.sources: every weight is above 1, so that what evaluation holds out would be trained on, too: lower "
            "them all (what counts is how they compare), or turn evaluation off"
        )


def check_encoding(job: Job, whole: int = READ_WHOLE) -> None:
    """Check that the job's text can be read: all of a short one; of a longer one samples, and the beginnings of files.

    Args:
        whole: bytes of the longest text of which all is looked at.

    Raises:
        UserError: a file is out of reach, or holds what cannot be read.
    """
    sources = sources_of(job.data)
    if sum(source.bytes for source in sources) <= whole:
        for _ in Documents(job.data, job.training.seed):
            pass
        return
    files, chat = [(source, file) for source in sources for file in source.files], ChatTemplate.of_job(job.data)
    for source, file in files[:: -(-len(files) // HEADS)]:
        read_piece(source, file, 0, HEAD_BYTES, chat)
    samples_of(sources, chat)


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
    if sum(source.bytes for source in sources_of(job.data)) <= whole:
        return None
    say("Looking at a sample of the text.")
    size = text_size(job.data, whole, seed=job.training.seed, sequence_length=job.training.sequence_length)
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
