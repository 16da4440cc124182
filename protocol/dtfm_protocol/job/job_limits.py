"""The largest jobs that this program takes on: what a plan and its messages can count (pure)."""

from dtfm_protocol.bounds import MOST_MICRO_BATCHES
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Evaluation, Training

MOST_SEQUENCES = 1 << 20
"""Sequences that a step or an evaluation may have: each is a Python integer more than once."""
MOST_TOKENS = 1 << 40
"""Tokens of a step."""


def check_limits(training: Training, evaluation: Evaluation, sets: int = 0) -> None:
    """Check the sizes of a step and of an evaluation.

    Args:
        sets: number of sets that are evaluated, of so many sequences each; 0: there is one without a name.

    Raises:
        UserError: one of them is larger than any that peers can tell each other of.
    """
    if training.global_batch > MOST_SEQUENCES or training.tokens > MOST_TOKENS:
        raise UserError(
            f"training.global_batch: a step of {training.global_batch} sequences of {training.sequence_length} tokens "
            f"is more than the {MOST_SEQUENCES} sequences and {MOST_TOKENS} tokens that this program takes on: "
            "lower global_batch or sequence_length"
        )
    if evaluation.sequences > MOST_SEQUENCES:
        raise UserError(
            f"evaluation.sequences: an evaluation of {evaluation.sequences} sequences is more than the "
            f"{MOST_SEQUENCES} that this program takes on: lower it"
        )
    if training.micro_batches > MOST_MICRO_BATCHES:
        raise UserError(
            f"training.micro_batch: a step of {training.micro_batches} micro-batches is more than the "
            f"{MOST_MICRO_BATCHES} of which a plan can tell: give micro_batch = "
            f"{_least_micro_batch(training.global_batch)} or more"
        )
    parts = max(1, sets) * -(-evaluation.sequences // training.micro_batch)
    if evaluation.every and parts > MOST_MICRO_BATCHES:
        raise UserError(
            f"evaluation.sequences: an evaluation of {parts} micro-batches is more than the {MOST_MICRO_BATCHES} of "
            "which a message can tell: lower evaluation.sequences or raise training.micro_batch"
        )


def _least_micro_batch(sequences: int) -> int:
    """Return the smallest size of micro-batches of which a step of so many sequences has few enough."""
    least = -(-sequences // MOST_MICRO_BATCHES)
    return next(size for size in range(least, sequences + 1) if sequences % size == 0)
