"""Freed memory: given back where a process grows, and left to it where the next action takes it again."""

import gc

import pytest
import torch

from dtfm_node.engine.freed_memory import LOOK_SECONDS, FreedMemory, own_bytes
from tests.harness.manual_clock import ManualClock


class Process:
    """Stands for a process: what lives, and the holes beside it, which a trim takes away."""

    def __init__(self) -> None:
        self.live = self.holes = self.looks = self.trims = 0
        self.clock = ManualClock()
        self.freed = FreedMemory(self._held, self._trim, self.clock)

    def _held(self) -> int:
        self.looks += 1
        return self.live + self.holes

    def _trim(self) -> None:
        self.trims += 1
        self.holes = 0

    def act(self, live: int = 0, freed: int = 0, seconds: float = LOOK_SECONDS) -> int:
        """What is held at most, up to the end of one action: `live` stays of it, and it leaves so much in holes."""
        self.live += live
        self.holes += freed
        held = self.live + self.holes
        self.clock.skip(seconds)
        self.freed.give_back()
        return held


def test_holes_that_pile_up_are_given_back() -> None:
    process = Process()
    peak = max(process.act(live=10, freed=30) for _ in range(34))
    assert peak <= 340 + 3 * 30  # without: 34 times 40
    peak = max(process.act(live=-10, freed=30) for _ in range(34))
    assert peak <= 340 + 3 * 30


def test_it_does_not_grow_from_step_to_step() -> None:
    process = Process()
    peaks = [max(process.act(live=10 * way, freed=7) for way in [1] * 8 + [-1] * 8) for _ in range(100)]
    assert max(peaks[1:]) <= 80 + 3 * 7


def test_what_each_action_takes_for_itself_is_left_to_it() -> None:
    """An action's own tensors are no growth: the next one takes the room of those of the last."""
    process = Process()
    for _ in range(100):
        process.holes = 50
        process.act()
    assert process.trims == 1


def test_where_nothing_is_freed_each_growth_is_looked_at_once() -> None:
    process = Process()
    process.act(live=100)
    for _ in range(100):
        process.act()
    assert process.trims == 1


def test_it_looks_twenty_times_a_second_at_most() -> None:
    process = Process()
    for _ in range(1000):
        process.act(freed=1, seconds=0.001)
    assert process.trims <= 20
    assert process.looks <= 20 + process.trims  # and once after each trim


def test_holes_between_tensors_that_stay_go_back_to_the_system() -> None:
    freed = FreedMemory.of_process()
    if freed is None:
        pytest.skip("this C library, or system, has no malloc_trim")
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(10_000, 120_000, (2000,), generator=generator).tolist()  # below what is mapped by itself
    tests_before = FreedMemory.of_process()
    assert tests_before is not None
    tests_before.give_back()  # else the tensors would fill the holes that other tests have left, and nothing would grow
    before = own_bytes()
    tensors = [torch.ones(size // 4) for size in sizes]
    filled = own_bytes()
    kept = tensors[::10]
    del tensors
    gc.collect()
    freed.give_back()
    assert filled - before > sum(sizes) // 2
    assert own_bytes() < filled - sum(sizes) // 2
    assert all(bool((tensor == 1.0).all()) for tensor in kept)
