"""Which tokens a step reads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.permutation import Permutation
from dtfm_protocol.data.token_shards import ShardMap
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Evaluation, Training
from dtfm_protocol.job.resolved_job import Corpus, Shard

LENGTH = 7


def corpus(tokens: int, shard: int = 1000) -> Corpus:
    sizes = [shard] * (tokens // shard) + [tokens % shard] * (tokens % shard > 0)
    return Corpus(dtype="uint16", vocab_size=257, shards=tuple(Shard(sha256="0" * 64, tokens=n) for n in sizes))


def training(seed: int = 0, global_batch: int = 8, micro_batch: int = 2) -> Training:
    return Training(
        steps=9,
        global_batch=global_batch,
        micro_batch=micro_batch,
        sequence_length=LENGTH,
        learning_rate=1e-3,
        seed=seed,
    )


def read(start: int, count: int) -> np.ndarray:
    """A corpus in which each token is its own position."""
    return np.arange(start, start + count, dtype=np.uint16)


@given(size=st.integers(1, 700), key=st.text(max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_permutation_of_any_size_takes_each_place_once(size: int, key: str) -> None:
    permutation = Permutation(size, key)
    assert sorted(map(permutation, range(size))) == list(range(size))


@given(size=st.integers(1, 1 << 60), key=st.text(max_size=5), data=st.data())
def test_a_permutation_too_large_for_memory_stays_in_range(size: int, key: str, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=20))
    places = [Permutation(size, key)(index) for index in indices]
    assert len(set(places)) == len(indices)
    assert all(0 <= place < size for place in places)


def test_a_permutation_depends_on_its_key_and_is_the_same_on_every_machine() -> None:
    assert [Permutation(10, "a")(index) for index in range(10)] == [3, 4, 2, 0, 1, 8, 9, 6, 7, 5]
    assert [Permutation(10, "b")(index) for index in range(10)] != [3, 4, 2, 0, 1, 8, 9, 6, 7, 5]


def test_a_permutation_looks_random() -> None:
    """Two neighbours are as far from each other as two draws are: a third of the range on average."""
    size = 3000
    places = np.array([Permutation(size, "x")(index) for index in range(size)])
    assert np.abs(np.diff(places)).mean() == pytest.approx(size / 3, rel=0.05)
    assert abs(np.corrcoef(places, np.arange(size))[0, 1]) < 0.05


@given(windows=st.integers(8, 60), rest=st.integers(0, LENGTH - 1), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_an_epoch_trains_on_each_token_once(windows: int, rest: int, seed: int) -> None:
    batches = Batches(corpus(windows * LENGTH + 1 + rest), training(seed), Evaluation())
    assert batches.training_windows == windows
    steps = -(-2 * windows // 8)
    starts = [start for step in range(1, steps + 1) for start in batches.windows(step)]
    first, second = starts[:windows], starts[windows : 2 * windows]
    assert sorted(first) == sorted(second) == [index * LENGTH for index in range(windows)]
    targets = sorted(token for start in first for token in range(start + 1, start + LENGTH + 1))
    assert targets == list(range(1, windows * LENGTH + 1))


def test_epochs_and_seeds_are_shuffled_apart() -> None:
    def epoch(number: int, seed: int) -> list[int]:
        batches = Batches(corpus(80 * LENGTH + 1), training(seed), Evaluation())
        return [start for step in range(10 * number + 1, 10 * number + 11) for start in batches.windows(step)]

    orders = [epoch(0, 0), epoch(1, 0), epoch(0, 1)]
    assert len({tuple(order) for order in orders}) == 3


def test_a_step_is_a_function_of_seed_and_step_alone() -> None:
    fresh, used = (Batches(corpus(5000), training(seed=3), Evaluation()) for _ in range(2))
    for step in range(1, 200):
        used.windows(step)
    assert used.windows(7) == fresh.windows(7)
    with pytest.raises(ValueError, match="from 1"):
        fresh.windows(0)


@given(tokens=st.integers(8 * LENGTH + 1 + 5 * LENGTH + 1, 900), micro_batch=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_training_never_reads_a_token_of_the_evaluation(tokens: int, micro_batch: int) -> None:
    batches = Batches(corpus(tokens), training(micro_batch=micro_batch), Evaluation(every=2, sequences=5))
    parts = [batches.evaluation_micro_batch(index, read) for index in range(batches.evaluation_micro_batches)]
    assert [len(part) for part in parts] == batches.evaluation_batch_sizes
    assert sum(part[:, 1:].size for part in parts) == batches.evaluation_tokens == 5 * LENGTH
    held_out = set(np.concatenate(parts).flat)
    assert held_out == set(range(tokens - 5 * LENGTH - 1, tokens))
    steps = -(-batches.training_windows // 8)
    trained = {
        token
        for step in range(1, steps + 1)
        for index in range(8 // micro_batch)
        for token in batches.micro_batch(step, index, read).flat
    }
    assert not trained & held_out
    assert len(held_out) + len(trained) > tokens - LENGTH


def test_the_last_evaluation_micro_batch_may_be_smaller() -> None:
    batches = Batches(corpus(1000), training(micro_batch=4), Evaluation(every=1, sequences=10))
    assert batches.evaluation_batch_sizes == [4, 4, 2]
    assert batches.evaluation_micro_batch(2, read).shape == (2, LENGTH + 1)
    with pytest.raises(IndexError, match="micro-batch 3 of 3"):
        batches.evaluation_micro_batch(3, read)


def test_without_evaluation_nothing_is_held_out() -> None:
    batches = Batches(corpus(8 * LENGTH + 1), training(), Evaluation(every=0, sequences=64))
    assert batches.evaluation_micro_batches == 0
    assert batches.evaluation_windows() == []
    assert batches.training_windows == 8


def test_micro_batches_put_together_are_the_global_batch() -> None:
    batches = Batches(corpus(1000), training(), Evaluation())
    parts = [batches.micro_batch(5, index, read) for index in range(4)]
    assert all(part.shape == (2, LENGTH + 1) and part.dtype == np.int64 for part in parts)
    assert np.concatenate(parts)[:, 0].tolist() == batches.windows(5)
    for index in (-1, 4):
        with pytest.raises(IndexError):
            batches.micro_batch(5, index, read)


def test_the_shards_of_a_step_are_those_that_its_windows_touch() -> None:
    names, batches = (
        ShardMap(corpus(1000, shard=10)),
        Batches(corpus(1000), training(), Evaluation(every=1, sequences=3)),
    )

    def touched(windows: list[int]) -> list[int]:
        spans = (names.spans(start, batches.window_tokens) for start in windows)
        return sorted({number for found in spans for number, _ in found})

    for step in range(1, 30):
        tokens = np.concatenate([batches.micro_batch(step, index, read) for index in range(4)])
        assert touched(batches.windows(step)) == sorted({int(token) // 10 for token in tokens.flat})
        mine = batches.micro_batch(step, 2, read)
        assert touched(batches.windows_for(step, [2])) == sorted({int(token) // 10 for token in mine.flat})
    assert touched(batches.evaluation_windows()) == [97, 98, 99]


def test_a_corpus_one_token_too_small_is_refused_with_both_counts() -> None:
    needed = 8 * LENGTH + 1 + 5 * LENGTH + 1
    Batches(corpus(needed), training(), Evaluation(every=1, sequences=5))
    with pytest.raises(UserError, match=f"the text has {needed - 1} tokens, but {needed} are needed") as caught:
        Batches(corpus(needed - 1), training(), Evaluation(every=1, sequences=5))
    assert "\n" not in str(caught.value)
