"""The tokens that a step reads: a pure function of seed, step and the job's amendments, so that no peer has to be
told."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from dtfm_protocol.data.permutation import Permutation
from dtfm_protocol.data.sample_shards import TargetCounts
from dtfm_protocol.data.token_shards import Tokens
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Evaluation, Training
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import Corpus

Read = Callable[[int, int], Tokens]
"""A function `read(start, count)` that returns tokens `[start, start + count)` of the corpus, or their marks:
[count]."""


class Batches:
    """The batches of a job: which windows of the corpus each training step and each evaluation reads.

    The corpus is cut into windows of `sequence_length` + 1 tokens that overlap by one, so that each token but the
    first is a target once an epoch; each epoch shuffles them anew. The last `evaluation.sequences` windows of the
    corpus, where evaluation is on, are never trained on, neither as inputs nor as targets. Where the corpus has sets
    for evaluation, these are in the place of the last windows; no micro-batch has sequences of two sets.
    """

    def __init__(
        self,
        corpus: Corpus,
        training: Training,
        evaluation: Evaluation,
        *,
        samples_before: Callable[[int], int] | None = None,
        evaluated: int | None = None,
    ) -> None:
        """Lay out the windows.

        Args:
            evaluation: says how many windows are held out.
            samples_before: tells how many samples the steps before one have read; None: each read `global_batch`.
            evaluated: number of held-out windows, the first ones, that an evaluation reads, of each set; None: all.

        Raises:
            UserError: the corpus is too small for a step; it says how many tokens there are, and how many are needed.
        """
        self._training = training
        self._samples_before = samples_before or (lambda step: (step - 1) * training.global_batch)
        length = training.sequence_length
        self.window_tokens = length + 1
        """Tokens that are read of each window."""
        check_corpus(corpus, training, evaluation)
        held_out = evaluation.sequences if evaluation.every else 0
        most = held_out if evaluated is None else min(evaluated, held_out)
        trained = trained_tokens(corpus, training, evaluation)
        places = [(one.start, min(most, one.windows)) for one in corpus.held_out] or [(trained, most)]
        self._evaluated = [range(start, start + count * length, length) for start, count in places]
        """The offsets in the corpus, in tokens, of what an evaluation reads of each set, or of all."""
        self.training_windows = (trained - 1) // length
        """Windows of an epoch: those that are trained on."""
        # Steps come one after another, so that the epoch of the last one is nearly always that of the next.
        self._epoch = lru_cache(maxsize=2)(
            lambda epoch: Permutation(self.training_windows, f"dtfm windows {training.seed} {epoch}")
        )

    @classmethod
    def of_plan(cls, timeline: JobTimeline, first: int) -> Self:
        """Return the batches of the steps from `first` on, as far as one plan goes (`JobTimeline.plan_end`).

        What is held out is what the job has held out since it began.

        Raises:
            UserError: the corpus is too small for such a step.
        """
        job, settings = timeline.job, timeline.settings_at(first)
        return cls(
            job.corpus,
            settings.training,
            job.evaluation,
            samples_before=timeline.samples_before,
            evaluated=settings.evaluation.sequences,
        )

    def windows(self, step: int) -> list[int]:
        """Return the offset in the corpus, in tokens, of each sequence of `step` (from 1): [global_batch]."""
        return self._starts(step, range(self._training.global_batch))

    def micro_batch(self, step: int, index: int, read: Read) -> npt.NDArray[np.int64]:
        """Read the tokens, or marks, of micro-batch `index` of `step` (from 1): [micro_batch, sequence_length + 1]."""
        return self._read(self._starts(step, self._share(index, self._training.global_batch)), read)

    def targets(self, step: int, counts: TargetCounts | None = None, micro_batches: Iterable[int] | None = None) -> int:
        """Count the targets of the whole of `step` (from 1), which its summed loss and gradients are divided by; 0
        where nothing of it is learned.

        Args:
            counts: those of the corpus's windows; None: the corpus has no samples, and each token is a target.
            micro_batches: if given, count those of these alone.
        """
        if micro_batches is None:
            return self._training.tokens if counts is None else counts.total(self.windows(step))
        windows = self.windows_for(step, micro_batches)
        return len(windows) * self._training.sequence_length if counts is None else counts.total(windows)

    @property
    def evaluation_micro_batches(self) -> int:
        """Number of micro-batches of an evaluation; 0 where evaluation is off."""
        return len(self.evaluation_batch_sizes)

    @property
    def evaluation_batch_sizes(self) -> list[int]:
        """Number of sequences of each micro-batch of an evaluation; the last of each set may have fewer."""
        return [len(one) for one in self._evaluation]

    @property
    def evaluation_tokens(self) -> int:
        """Number of target tokens of an evaluation, by which its summed loss is divided; 0 where evaluation is off."""
        return sum(map(len, self._evaluated)) * self._training.sequence_length

    @property
    def evaluation_parts(self) -> list[range]:
        """The numbers of the micro-batches of each set; where there are no sets, of all as of one."""
        size, parts, first = self._training.micro_batch, list[range](), 0
        for windows in self._evaluated:
            parts.append(range(first, first + -(-len(windows) // size)))
            first = parts[-1].stop
        return parts

    def micro_batch_targets(self, index: int, counts: TargetCounts | None = None) -> int:
        """Count the targets of micro-batch `index` of an evaluation."""
        windows = self._evaluation[index]
        return len(windows) * self._training.sequence_length if counts is None else counts.total(windows)

    def evaluation_targets(self, counts: TargetCounts | None = None) -> int:
        """Count the targets of an evaluation in the same way; 0 where evaluation is off, too."""
        return self.evaluation_tokens if counts is None else counts.total(self.evaluation_windows())

    def evaluation_micro_batch(self, index: int, read: Read) -> npt.NDArray[np.int64]:
        """Read tokens, or marks, of micro-batch `index` of the evaluation: [up to micro_batch, sequence_length + 1]."""
        if not 0 <= index < len(self._evaluation):
            raise IndexError(f"micro-batch {index} of {len(self._evaluation)}")
        return self._read(self._evaluation[index], read)

    def evaluation_windows(self) -> list[int]:
        """Return the offset in the corpus, in tokens, of each sequence of the evaluation; none where it is off."""
        return [start for windows in self._evaluated for start in windows]

    @cached_property
    def _evaluation(self) -> list[range]:
        """The offsets of the sequences of each micro-batch of an evaluation."""
        size = self._training.micro_batch
        return [windows[first : first + size] for windows in self._evaluated for first in range(0, len(windows), size)]

    def windows_for(self, step: int, micro_batches: Iterable[int]) -> list[int]:
        """Return the offset in the corpus, in tokens, of each sequence that these micro-batches of `step` read."""
        shares = [self._share(index, self._training.global_batch) for index in micro_batches]
        return [start for share in shares for start in self._starts(step, share)]

    def _starts(self, step: int, share: range) -> list[int]:
        """Return the offsets in the corpus, in tokens, of the sequences `share` of the global batch of `step`."""
        if step < 1:
            raise ValueError(f"steps count from 1; this is step {step}")
        starts, before = [], self._samples_before(step)
        for sequence in share:
            epoch, index = divmod(before + sequence, self.training_windows)
            starts.append(self._epoch(epoch)(index) * self._training.sequence_length)
        return starts

    def _share(self, index: int, sequences: int) -> range:
        """Return the places of micro-batch `index`'s sequences among `sequences` in all."""
        size = self._training.micro_batch
        if not 0 <= index * size < sequences:
            raise IndexError(f"micro-batch {index} of {-(-sequences // size)}")
        return range(index * size, min((index + 1) * size, sequences))

    def _read(self, windows: Sequence[int], read: Read) -> npt.NDArray[np.int64]:
        return np.stack([read(start, self.window_tokens) for start in windows]).astype(np.int64)


def tail_tokens(training: Training, evaluation: Evaluation) -> int:
    """Return the number of tokens at the end of the text that are held out for evaluation; 0 where none are."""
    return evaluation.sequences * training.sequence_length + 1 if evaluation.takes_tail else 0


def trained_tokens(corpus: Corpus, training: Training, evaluation: Evaluation) -> int:
    """Return the number of tokens at a corpus's beginning that may be trained on."""
    if corpus.held_out:
        return corpus.held_out[0].start
    return corpus.tokens - tail_tokens(training, evaluation)


def check_corpus(corpus: Corpus, training: Training, evaluation: Evaluation) -> None:
    """Check that a corpus is enough for a step and what is held out.

    Raises:
        UserError: it is not, as `check_enough` says it.
    """
    if corpus.held_out:
        check_enough(corpus.held_out[0].start, training, Evaluation())
    else:
        check_enough(corpus.tokens, training, evaluation)


def check_enough(tokens: int, training: Training, evaluation: Evaluation, how: str = "") -> None:
    """Check that a corpus of so many tokens is enough for a step and what is held out.

    Args:
        how: how sure their number is: "at most ", or "about "; "": they were counted.

    Raises:
        UserError: it is not; it says how many tokens there are, and how many are needed.
    """
    tail = tail_tokens(training, evaluation)
    needed = training.tokens + 1 + tail
    if tokens < needed:
        use = f"{training.tokens + 1} for a step" + (f" and {tail} for evaluation" if tail else "")
        raise UserError(
            f"the text has {how}{tokens} tokens, but {needed} are needed ({use}): "
            "give more text, or a smaller global_batch, sequence_length or evaluation.sequences"
        )


def check_held_out(tokens: int, repeated: int, training: Training, evaluation: Evaluation) -> None:
    """Check that nothing is held out of which there may be a copy that is trained on.

    Args:
        tokens: number of tokens of the corpus.
        repeated: number of those at its beginning that may come again in it.

    Raises:
        UserError: something is; it says how many tokens there are that do not come again.
    """
    tail = tail_tokens(training, evaluation)
    if tail and repeated > tokens - tail:
        raise UserError(
            f"evaluation.sequences: {tail} tokens are held out, but only {tokens - repeated} are of sources whose "
            "weight is 1 or less; the others would be trained on, too: lower weights, or evaluation.sequences"
        )
