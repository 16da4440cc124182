"""The sharded all-reduce: every holder ends with the same bits, and they are the sum."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.allreduce import all_reduce
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello, PeerLost
from dtfm_node.engine.expectations import step_frames
from dtfm_protocol.codecs import payload_bytes
from dtfm_protocol.frames import Key, Kind
from dtfm_protocol.job import Training, Wire
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.data import Stream, read_message
from dtfm_protocol.planes.memory import MemoryDataPlane, MemoryNetwork

STEP = 3
COUNTS = [1, 2, 3, 5]
WIRES: list[Wire] = ["fp32", "fp16", "bf16"]


def gradients(holders: int, elements: int, spread: float = 1e-4, seed: int = 0) -> list[torch.Tensor]:
    """One flat gradient a holder, of magnitudes as they occur."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator) * spread * (number + 1) for number in range(holders)]


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    await asyncio.sleep(0)
    return function(*arguments)


async def reduce_all(flats: list[torch.Tensor], wire: Wire, compute: Any = inline) -> list[float]:
    """Run the all-reduce on all holders at once, in place; the sums of squares of their parts."""
    names = tuple(f"peer{number}" for number in range(len(flats)))
    elements = len(flats[0])
    bucket = Bucket(0, names, ("w",), elements)
    plan = Plan(version=1, stages=((0, 1),), routes=tuple((name,) for name in names), wire=wire)
    training = Training(steps=9, global_batch=len(names), micro_batch=1, sequence_length=1, learning_rate=1.0)
    network = MemoryNetwork()

    async def serve(plane: MemoryDataPlane, exchange: Exchange) -> None:
        async def answer(stream: Stream) -> None:
            await read_message(stream, Hello)
            await exchange.serve(stream)

        await plane.serve(TRAINING, answer)

    async with contextlib.AsyncExitStack() as stack:
        exchanges = {}
        for name in names:
            plane = MemoryDataPlane(network, name)
            exchange = exchanges[name] = await stack.enter_async_context(Exchange.running(plane, 1))
            for frame in step_frames(plan, name, STEP, training, 1, (bucket,)):
                exchange.post(frame.sender, frame.key, frame.size, exact=frame.exact)
            await serve(plane, exchange)
        squares = await asyncio.wait_for(
            asyncio.gather(
                *(
                    all_reduce(bucket, name, STEP, flat, wire, exchanges[name], compute)
                    for name, flat in zip(names, flats, strict=True)
                )
            ),
            10,
        )
        for name, exchange in exchanges.items():
            assert not exchange.refused
            sent = sum(payload_bytes(wire, (high - low,)) for low, high in [bucket.part(names.index(name))])
            others = sum(payload_bytes(wire, (high - low,)) for low, high in map(bucket.part, range(len(names)))) - sent
            assert exchange.bytes_sent == others + (len(names) - 1) * (sent + 2 * 36)
    return list(squares)


def assert_bit_identical(flats: list[torch.Tensor]) -> None:
    for flat in flats[1:]:
        assert torch.equal(flat.view(torch.int32), flats[0].view(torch.int32))


@pytest.mark.parametrize("holders", COUNTS)
async def test_in_fp32_every_holder_ends_with_the_sum_in_the_holders_order(holders: int) -> None:
    flats = gradients(holders, 101)
    wanted = torch.zeros(101)
    for flat in flats:
        wanted = wanted + flat
    squares = await reduce_all(flats, "fp32")
    assert_bit_identical(flats)
    assert torch.equal(flats[0], wanted)
    assert sum(squares) == pytest.approx(float(wanted.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("holders", COUNTS)
@pytest.mark.parametrize(("wire", "close"), [("fp16", 2.0**-10), ("bf16", 2.0**-7)])
async def test_on_a_lossy_wire_every_holder_ends_with_the_same_bits_near_the_sum(
    holders: int, wire: Wire, close: float
) -> None:
    flats = gradients(holders, 101, spread=1e-9)
    magnitude = torch.stack(flats).abs().sum(0)
    wanted = torch.stack(flats).double().sum(0)
    squares = await reduce_all(flats, wire)
    assert_bit_identical(flats)
    largest = float(magnitude.max()) if wire == "fp16" else 0.0
    assert ((flats[0].double() - wanted).abs() <= 2 * close * magnitude + largest * 2.0**-22).all()
    assert sum(squares) == pytest.approx(float(flats[0].double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("elements", [0, 1, 2, 4])
async def test_a_bucket_may_have_fewer_elements_than_holders(wire: Wire, elements: int) -> None:
    flats = [torch.full((elements,), 2.0**number) for number in range(5)]
    squares = await reduce_all(flats, wire)
    for flat in flats:
        torch.testing.assert_close(flat, torch.full((elements,), 31.0), rtol=2.0**-8, atol=0)
    assert_bit_identical(flats)
    assert sum(squares) == pytest.approx(elements * 31.0**2, rel=2.0**-7)


@given(holders=st.integers(1, 4), elements=st.integers(1, 40), wire=st.sampled_from(WIRES), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_replicas_stay_bit_identical_whatever_they_hold(holders: int, elements: int, wire: Wire, seed: int) -> None:
    flats = gradients(holders, elements, seed=seed)
    asyncio.run(reduce_all(flats, wire))
    assert_bit_identical(flats)


async def test_the_speed_of_holders_does_not_change_the_bits() -> None:
    async def uneven(function: Callable[..., Any], *arguments: Any) -> Any:
        for _ in range(delays.pop()):
            await asyncio.sleep(0)
        return function(*arguments)

    results = []
    for seed in range(3):
        delays = torch.randint(0, 9, (500,), generator=torch.Generator().manual_seed(seed)).tolist()
        flats = gradients(5, 77)
        await reduce_all(flats, "fp32", uneven)
        assert_bit_identical(flats)
        results.append(flats[0])
    assert_bit_identical(results)


async def test_one_holder_keeps_its_values_and_sends_nothing() -> None:
    (flat,) = flats = gradients(1, 10)
    before = flat.clone()
    await reduce_all(flats, "fp32")
    assert torch.equal(flat, before)


async def test_a_sum_that_is_not_finite_shows_in_the_sum_of_squares() -> None:
    """It is what tells the trainer to stop before anything is applied."""
    flats = gradients(3, 9)
    flats[1][4] = float("nan")
    squares = await reduce_all(flats, "fp32")
    assert sum(square != square for square in squares) == 1


async def test_a_holder_that_vanishes_is_named() -> None:
    network = MemoryNetwork()
    bucket = Bucket(0, ("me", "gone"), ("w",), 10)
    async with contextlib.AsyncExitStack() as stack:
        exchange = await stack.enter_async_context(Exchange.running(MemoryDataPlane(network, "me"), 1))
        for what in (Key(Kind.PART, STEP, 0), Key(Kind.REDUCED, STEP, 1)):
            exchange.post("gone", what, 20)
        with pytest.raises(PeerLost) as caught:
            await asyncio.wait_for(all_reduce(bucket, "me", STEP, torch.ones(10), "fp32", exchange, inline), 5)
        assert caught.value.peer == "gone"
