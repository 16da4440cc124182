"""Sizes beyond those of which peers can tell each other are refused by name, before anything is made."""

from typing import Any

import pytest

from dtfm_protocol.bounds import MOST_MICRO_BATCHES
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Evaluation, Training
from dtfm_protocol.job.job_limits import MOST_SEQUENCES, check_limits

pytestmark = pytest.mark.unit


def training(**changes: Any) -> Training:
    values = {"steps": 1, "global_batch": 8, "micro_batch": 1, "sequence_length": 8, "learning_rate": 1e-3}
    return Training.model_validate(values | changes)


@pytest.mark.parametrize(
    ("asked", "evaluation", "words"),
    [
        (training(global_batch=2 * MOST_SEQUENCES, micro_batch=64), Evaluation(), "training.global_batch"),
        (training(sequence_length=1 << 31, global_batch=1 << 10), Evaluation(), "lower global_batch or sequence"),
        (training(), Evaluation(every=1, sequences=MOST_SEQUENCES + 1), "evaluation.sequences"),
        (training(global_batch=3 * MOST_MICRO_BATCHES), Evaluation(), "micro_batch = 3 or more"),
        (training(), Evaluation(every=1, sequences=MOST_MICRO_BATCHES + 1), "evaluation.sequences"),
    ],
)
def test_what_is_too_large_is_named_with_what_to_do(asked: Training, evaluation: Evaluation, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_limits(asked, evaluation)


def test_the_advice_is_followed_with_success() -> None:
    check_limits(training(global_batch=3 * MOST_MICRO_BATCHES, micro_batch=3), Evaluation())


def test_the_largest_of_each_is_taken() -> None:
    largest = Evaluation(every=1, sequences=MOST_SEQUENCES)
    check_limits(training(global_batch=MOST_SEQUENCES, micro_batch=16), largest)
    check_limits(training(), Evaluation(every=0, sequences=MOST_SEQUENCES))
