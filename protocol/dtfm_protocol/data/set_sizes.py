"""The sizes of the sets on which a job is evaluated, before anything is prepared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtfm_protocol.data.held_out_sets import encode_sets
from dtfm_protocol.data.marks import BEGINS, window_targets
from dtfm_protocol.data.source_files import sources_of
from dtfm_protocol.data.tokenizer import bpe_size, make_tokenizer
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.evaluation_set import EvaluationSet


@dataclass(frozen=True)
class SetSize:
    """The size of a set."""

    name: str
    bytes: int
    """Bytes of its files."""
    sequences: int | None
    """Sequences of it that an evaluation reads; None: the tokenizer is not made yet, which is trained on the text."""
    targets: int | None
    """Tokens of these whose loss counts; None as `sequences`."""


def set_sizes(
    data: Data, sets: Sequence[EvaluationSet], sequence_length: int, sequences: int, seed: int = 0
) -> tuple[SetSize, ...]:
    """Measure sets, as far as an evaluation reads them.

    Args:
        data: the job's `[data]`, with paths made absolute (`Job.rooted`).
        sequences: sequences of each set, at most.
        seed: the job's, which draws documents of sources with a weight.

    Raises:
        UserError: a set has too little text, or cannot be read; it names the set by its key.
    """
    sizes = [(one.name, sum(source.bytes for source in sources_of(one.documents(data)))) for one in sets]
    if bpe_size(data.tokenizer) is not None:
        return tuple(SetSize(name, size, None, None) for name, size in sizes)
    encoded = encode_sets(data, sets, make_tokenizer(data, ()), sequence_length, sequences, seed)
    found = []
    for (name, size), one in zip(sizes, encoded, strict=True):
        targets = one.windows * sequence_length
        if one.marks is not None:  # behind the last window the corpus begins something else
            marks = np.append(one.marks, np.uint8(BEGINS))
            targets = int(window_targets(marks[: targets + 1], sequence_length).sum())
        found.append(SetSize(name, size, one.windows, targets))
    return tuple(found)
