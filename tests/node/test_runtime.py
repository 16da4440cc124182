"""What the engine runs on: two threads that end with it, and a way to and from memory without copies on the CPU."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from dtfm_node.engine.host_copies import HostCopies
from dtfm_node.engine.runtime import Runtime
from dtfm_protocol.process.trace_format import Lane
from dtfm_protocol.wire.codecs import encode, to_bytes

CPU = torch.device("cpu")
NOWHERE = torch.device("meta")


def engine_threads() -> set[str]:
    """The names of the threads that are alive and belong to a machine."""
    kinds = ("compute", "reduce", "upload", "download")
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(kinds)}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert not engine_threads()
    yield
    assert not engine_threads()


class Noting:
    """A tracer that keeps what it is told."""

    def __init__(self) -> None:
        self.spans: list[tuple[Lane, str, float, float, dict[str, str | int]]] = []

    def span(self, lane: Lane, name: str, begin: float, end: float, /, **args: str | int) -> None:
        self.spans.append((lane, name, begin, end, args))


async def test_compute_and_reduce_are_a_thread_each() -> None:
    """The all-reduce begins while the last backward still runs."""
    with Runtime.running(CPU) as machine:
        reduced = threading.Event()
        computing = machine.compute(reduced.wait, 5.0)
        await machine.reduce(reduced.set)
        assert await computing
        names = [await thread(lambda: threading.current_thread().name) for thread in (machine.compute, machine.reduce)]
        assert [name.partition("_")[0] for name in names] == ["compute", "reduce"]


async def test_the_smallest_numbers_count_whatever_a_library_has_set() -> None:
    torch.set_flush_denormal(True)
    try:
        with Runtime.running(CPU) as machine:
            smallest = torch.ones(100, dtype=torch.int32).view(torch.float32)
            for thread in (machine.compute, machine.reduce):
                found = await thread(torch.add, smallest, smallest)
                assert torch.equal(found.view(torch.int32), smallest.view(torch.int32) * 2)
    finally:
        torch.set_flush_denormal(False)


async def test_what_one_thread_is_given_runs_in_that_order() -> None:
    with Runtime.running(CPU) as machine:
        order: list[int] = []
        await asyncio.gather(*(machine.compute(order.append, number) for number in range(20)))
        assert order == list(range(20))


async def test_threads_end_with_the_block_after_what_they_have_under_way() -> None:
    done = threading.Event()

    def slow() -> None:
        time.sleep(0.05)
        done.set()

    with pytest.raises(KeyError):  # noqa: PT012, SIM117 - the block ends while a thread computes
        with Runtime.running(CPU) as machine:
            computing = machine.compute(slow)
            raise KeyError
    assert done.is_set()
    await computing
    assert not engine_threads()


async def test_an_error_on_a_thread_comes_out_where_it_was_asked_for() -> None:
    def fails() -> None:
        raise ArithmeticError("no")

    with Runtime.running(CPU) as machine:
        with pytest.raises(ArithmeticError):
            await machine.run("compute", "fails", fails)
        assert await machine.run("compute", "goes on", lambda: 3) == (3, None)


async def test_what_is_run_is_drawn_with_its_labels() -> None:
    tracer = Noting()
    with Runtime.running(CPU, tracer) as machine:
        begun = time.monotonic()
        result, made = await machine.run("compute", "forward 3", time.sleep, 0.01, step=2, index=3)
        assert (result, made) == (None, None)
        machine.drawn("all-reduce", "bucket 1", begun, group=1)
        (lane, name, begin, end, labels), whole = tracer.spans
        assert (lane, name, labels) == ("compute", "forward 3", {"step": 2, "index": 3})
        assert begun <= begin <= end - 0.01
        assert whole[:2] == ("all-reduce", "bucket 1")
        assert whole[2] == begun
        assert whole[3] >= end


async def test_on_the_cpu_nothing_is_moved_or_copied() -> None:
    with Runtime.running(CPU) as machine:
        host_copies = machine.host_copies
        received = bytearray(b"\x01\x02\x03\x04")
        coded = await host_copies.to_device(received)
        received[0] = 9
        assert coded.tolist() == [9, 2, 3, 4]
        tensor = torch.arange(4.0)
        sent = await host_copies.to_host(encode(tensor, "fp32"), host_copies.mark())
        tensor[0] = 5.0
        assert bytes(sent) == bytes(to_bytes(encode(tensor, "fp32")))
        assert host_copies.mark() is None
        assert {name.partition("_")[0] for name in engine_threads()} <= {"compute", "reduce"}


async def test_to_another_device_bytes_are_moved_on_a_thread_that_ends() -> None:
    host_copies = HostCopies(NOWHERE)
    try:
        there = await host_copies.to_device(b"\x01\x02\x03")
        assert (there.device, there.shape, there.dtype) == (NOWHERE, (3,), torch.uint8)
        assert {name.partition("_")[0] for name in engine_threads()} == {"upload"}
    finally:
        host_copies.close()
    assert not engine_threads()


async def test_closing_waits_for_what_is_being_moved() -> None:
    host_copies = HostCopies(NOWHERE)
    moving = [asyncio.create_task(host_copies.to_device(bytes(1000))) for _ in range(5)]
    await asyncio.sleep(0)
    host_copies.close()
    assert all(len(tensor) == 1000 for tensor in await asyncio.gather(*moving))


async def test_a_device_with_a_share_of_the_time_rests_for_the_rest_of_it() -> None:
    with Runtime.running(CPU, share=0.25) as machine:
        first = await machine.run("compute", "a", lambda: (time.monotonic(), time.sleep(0.02)))
        second = await machine.run("compute", "b", time.monotonic)
    assert second[0] - first[0][0] >= 0.02 / 0.25
    assert machine.take_busy() < second[0] - first[0][0]  # a rest is no compute


async def test_what_an_action_took_is_its_compute_and_the_rest_that_it_costs() -> None:
    """Not what it waits for: the rest after the one before it."""
    took: list[float] = []
    with Runtime.running(CPU, share=0.25) as machine:
        begun = time.monotonic()
        for _ in range(2):
            await machine.run("compute", "a", time.sleep, 0.01, least=0.02, took=took.append)
        elapsed = time.monotonic() - begun
    assert all(seconds >= 0.02 / 0.25 for seconds in took)
    assert took[0] + took[1] / 4 <= elapsed


async def test_the_time_in_which_a_device_waits_for_data_counts_as_rest() -> None:
    with Runtime.running(CPU, share=0.5) as machine:
        await machine.run("compute", "a", time.sleep, 0.01)
        rests_until = machine._rests_until[0]
        await asyncio.sleep(max(0.0, rests_until - time.monotonic()) + 0.001)
        begun = await machine.run("compute", "b", time.monotonic)
    assert begun[0] >= rests_until


async def test_without_a_share_nothing_rests() -> None:
    with Runtime.running(CPU) as machine:
        await machine.run("compute", "a", time.sleep, 0.01)
        assert machine._rests_until == [0.0]
