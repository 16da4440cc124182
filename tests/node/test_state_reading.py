"""A state is read while it goes on being trained: what is read is the state before the update."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.state.state_reading import Abandoned, Reading

State = dict[str, torch.Tensor]


def state(step: int = 7) -> State:
    generator = torch.Generator().manual_seed(step)
    return {f"{kind}/{name}": torch.randn(3, 5, generator=generator) for name in "ab" for kind in ("weight", "exp_avg")}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def settles(reading: Reading) -> bool:
    """Whether an update may begin."""
    update = threading.Thread(target=reading.settle, daemon=True)
    update.start()
    update.join(5)
    return not update.is_alive()


def test_a_reading_looks_at_everything_once_in_order() -> None:
    seen: list[str] = []
    reading = Reading(state())
    reading.visit(lambda key, _: seen.append(key))
    assert seen == list(state())
    reading.visit(lambda key, _: seen.append(key))
    assert seen == list(state())


def test_an_update_waits_until_a_large_state_was_read() -> None:
    """Copying it would take as much memory as there may not be."""
    tensors, wanted = state(), state()
    reading, seen = Reading(tensors, copy_bytes=state()["weight/a"].nbytes), dict[str, torch.Tensor]()
    begun, go_on, settled = threading.Event(), threading.Event(), threading.Event()

    def look(key: str, tensor: torch.Tensor) -> None:
        if key == "exp_avg/a":  # the second of four
            begun.set()
            assert go_on.wait(10)
        seen[key] = tensor.clone()

    def update() -> None:
        reading.settle()
        settled.set()
        for tensor in tensors.values():
            tensor.zero_()

    threads = [threading.Thread(target=reading.visit, args=(look,)), threading.Thread(target=update)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    assert not settled.wait(0.1)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert settled.is_set()
    assert same(seen, wanted)


def test_an_update_copies_the_little_that_is_left_and_goes_on() -> None:
    tensors, wanted = state(), state()
    reading, seen = Reading(tensors), dict[str, torch.Tensor]()
    reading.settle()
    for tensor in tensors.values():
        tensor.zero_()
    reading.visit(seen.__setitem__)
    assert same(seen, wanted)


@settings(deadline=None)
@given(updates=st.sets(st.integers(0, 3)))
def test_whenever_updates_come_what_is_read_is_the_state_before_them(updates: set[int]) -> None:
    tensors, wanted = state(), state()
    reading, seen = Reading(tensors), dict[str, torch.Tensor]()

    def update() -> None:
        reading.settle()
        for tensor in tensors.values():
            tensor.add_(1.0)

    for turn, key in enumerate(tensors):
        if turn in updates:
            update()
        with reading._progress:
            seen[key] = reading._left.pop(key).clone()
    assert same(seen, wanted)


def test_an_update_does_not_wait_for_a_reading_that_was_given_up() -> None:
    reading = Reading(state(), copy_bytes=0)
    reading.abandon()
    assert settles(reading)
    seen: list[str] = []
    with pytest.raises(Abandoned):  # which is no reading of the whole
        reading.visit(lambda key, _: seen.append(key))
    assert seen == []


def test_an_update_that_waits_goes_on_when_the_reading_is_given_up() -> None:
    reading = Reading(state(), copy_bytes=0)
    update = threading.Thread(target=reading.settle, daemon=True)
    update.start()
    reading.abandon()
    update.join(5)
    assert not update.is_alive()


def test_to_give_up_what_was_read_changes_nothing() -> None:
    reading = Reading(state(), copy_bytes=0)
    reading.visit(lambda *_: None)
    reading.abandon()
    reading.visit(lambda *_: None)
    assert settles(reading)


def test_an_update_does_not_wait_for_a_reading_that_broke_off() -> None:
    """Whatever broke it: what nobody has thought of, too."""
    reading = Reading(state(), copy_bytes=0)

    def look(key: str, _: torch.Tensor) -> None:
        if key == "exp_avg/a":
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        reading.visit(look)
    assert settles(reading)
