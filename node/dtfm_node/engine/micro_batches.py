"""Micro-batches as a stage takes them from the corpus's files: tokens, their positions, and which of them count."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.data.marks import sample_layout
from dtfm_protocol.data.token_shards import TokenReader
from dtfm_protocol.model.stage import NO_TARGET


class MicroBatch(NamedTuple):
    """What the files say of one micro-batch to a stage; int64 [sequences, sequence_length] each, on the CPU."""

    inputs: torch.Tensor | None = None
    """The tokens that go into the model; None but on the first stage."""
    targets: torch.Tensor | None = None
    """The token after each, `NO_TARGET` where its loss does not count; None but on the last stage."""
    positions: torch.Tensor | None = None
    """Place of each token in its document, which attends to itself alone; None: each sequence is one document."""


class MicroBatches:
    """Micro-batches of a job's steps and evaluations, read as they are asked for from files that are on this disk."""

    def __init__(self, batches: Batches, corpus: CorpusReader, *, first: bool, last: bool) -> None:
        """Open nothing yet.

        Args:
            batches: tells which windows of the corpus each step reads.
            first: whether the stage takes tokens.
            last: whether it computes losses.
        """
        self._batches, self._first, self._last = batches, first, last
        self._tokens, self._marks, self._counts = corpus.tokens, corpus.marks, corpus.counts
        self.sets = tuple(one.name for one in corpus.held_out)
        """Names of the sets that the job evaluates; none: it evaluates the end of its text."""
        self.targets = lru_cache(maxsize=4)(self._targets)
        """Counts the targets of the whole of a step, from 1, by which its losses and gradients are divided."""

    def of_step(self, step: int, index: int) -> MicroBatch:
        """Read micro-batch `index` of `step` (from 1).

        Raises:
            Refused: a file is not here.
        """
        tokens, marks = (
            self._batches.micro_batch(step, index, reader.read) if reader is not None else None
            for reader in (self._read_tokens, self._marks)
        )
        return self._made(tokens, marks)

    def of_evaluation(self, index: int) -> MicroBatch:
        """Read micro-batch `index` of an evaluation.

        Raises:
            Refused: a file is not here.
        """
        tokens, marks = (
            self._batches.evaluation_micro_batch(index, reader.read) if reader is not None else None
            for reader in (self._read_tokens, self._marks)
        )
        return self._made(tokens, marks)

    def targets_of(self, step: int, indices: Sequence[int]) -> int:
        """Count the targets of some micro-batches of `step`."""
        return self._batches.targets(step, self._counts, indices)

    @property
    def evaluation_targets(self) -> int:
        """Number of targets of an evaluation, by which its loss is divided; 0 where there is nothing to evaluate."""
        return self._batches.evaluation_targets(self._counts)

    @property
    def set_targets(self) -> tuple[dict[int, int], ...]:
        """The numbers of targets of each micro-batch of an evaluation, by its index, for each set that the job
        evaluates; none where it has no sets."""
        if not self.sets:
            return ()
        parts = self._batches.evaluation_parts
        return tuple({at: self._batches.micro_batch_targets(at, self._counts) for at in part} for part in parts)

    @property
    def _read_tokens(self) -> TokenReader | None:
        return self._tokens if self._first or self._last else None

    def _targets(self, step: int) -> int:
        return self._batches.targets(step, self._counts)

    def _made(self, tokens: npt.NDArray[np.int64] | None, marks: npt.NDArray[np.int64] | None) -> MicroBatch:
        layout = sample_layout(marks) if marks is not None else None
        targets = tokens[:, 1:] if tokens is not None and self._last else None
        if targets is not None and layout is not None:
            targets = np.where(layout.is_target, targets, NO_TARGET)
        inputs = tokens[:, :-1] if tokens is not None and self._first else None
        positions = layout.positions if layout is not None else None
        return MicroBatch(*(torch.from_numpy(one) if one is not None else None for one in (inputs, targets, positions)))
