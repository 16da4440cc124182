"""The sharded all-reduce: every holder ends with the same bits, and they are the sum."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.frame_seals import SEAL_BYTES, FrameSeals, Seal
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.reduction_receipts import StepReceipts, squares_of
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.plan.reduction_trees import Trees
from dtfm_protocol.plan.summed_parts import WHOLE
from dtfm_protocol.wire.codecs import encode, to_bytes
from dtfm_protocol.wire.frames import HEADER_BYTES, Key, Kind
from tests.harness.named_peers import signer_of
from tests.node.holders import CODECS, COUNTS, STEP, Holders, gradients, reduce_all


def assert_bit_identical(flats: list[torch.Tensor]) -> None:
    for flat in flats[1:]:
        assert torch.equal(flat.view(torch.int32), flats[0].view(torch.int32))


@pytest.mark.parametrize("holders", COUNTS)
async def test_in_fp32_every_holder_ends_with_the_sum_in_the_holders_order(holders: int) -> None:
    """Magnitudes are far apart, so that another order would round differently."""
    flats = [flat * 10.0**number for number, flat in enumerate(gradients(holders, 101))]
    wanted = torch.zeros(101)
    for flat in flats:
        wanted = wanted + flat
    squares = await reduce_all(flats, "fp32")
    assert_bit_identical(flats)
    assert torch.equal(flats[0], wanted)
    assert len(set(squares)) == 1
    assert squares[0] == pytest.approx(float(wanted.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("holders", COUNTS)
@pytest.mark.parametrize(("codec", "close"), [("fp16", 2.0**-10), ("bf16", 2.0**-7)])
async def test_on_a_half_wire_every_holder_ends_with_the_same_bits_near_the_sum(
    holders: int, codec: CodecName, close: float
) -> None:
    flats = gradients(holders, 101, spread=1e-9)
    magnitude = torch.stack(flats).abs().sum(0)
    wanted = torch.stack(flats).double().sum(0)
    squares = await reduce_all(flats, codec)
    assert_bit_identical(flats)
    largest = float(magnitude.max()) if codec == "fp16" else 0.0
    assert ((flats[0].double() - wanted).abs() <= 2 * close * magnitude + largest * 2.0**-22).all()
    assert len(set(squares)) == 1
    assert squares[0] == pytest.approx(float(flats[0].double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("holders", COUNTS)
async def test_on_an_int8_wire_every_holder_ends_with_the_same_bits_half_a_level_a_coding_from_the_sum(
    holders: int,
) -> None:
    flats = gradients(holders, 1001, spread=1e-9)
    levels = sum(float(flat.abs().max()) for flat in flats) + float(torch.stack(flats).sum(0).abs().max())
    wanted = torch.stack(flats).double().sum(0)
    squares = await reduce_all(flats, "int8")
    assert_bit_identical(flats)
    assert ((flats[0].double() - wanted).abs() <= 0.501 * levels / 127).all()
    assert len(set(squares)) == 1
    assert squares[0] == pytest.approx(float(flats[0].double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("elements", [0, 1, 2, 4])
async def test_a_bucket_may_have_fewer_elements_than_holders(codec: CodecName, elements: int) -> None:
    flats = [torch.full((elements,), 2.0**number) for number in range(5)]
    squares = await reduce_all(flats, codec)
    for flat in flats:
        torch.testing.assert_close(flat, torch.full((elements,), 31.0), rtol=2.0**-8, atol=0)
    assert_bit_identical(flats)
    assert len(set(squares)) == 1
    assert squares[0] == pytest.approx(elements * 31.0**2, rel=2.0**-7)


PARTS = [(WHOLE, 0, 0), (0, WHOLE, 0), (1, 0, WHOLE - 1), (20_000, 30_000, 15_536)]
"""Of three holders: one sums all, one sums nothing, all sum unlike parts."""


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("elements", [1, 101])
async def test_whoever_sums_how_much_every_holder_ends_with_the_same_sum(parts: tuple[int, ...], elements: int) -> None:
    """Bit for bit what equal parts give, for the order of the sum is the same."""
    flats = [flat * 10.0**number for number, flat in enumerate(gradients(3, elements))]
    alike = [flat.clone() for flat in flats]
    squares = await reduce_all(flats, "fp32", parts=parts)
    assert_bit_identical(flats)
    assert await reduce_all(alike, "fp32") == pytest.approx(squares, rel=1e-12)
    assert torch.equal(flats[0], alike[0])
    assert len(set(squares)) == 1


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("codec", ["bf16", "int8"])
async def test_unlike_parts_on_a_narrow_wire_leave_replicas_bit_identical_and_receipts_alike(
    codec: CodecName, parts: tuple[int, ...]
) -> None:
    async with Holders.running(3, 1000, codec, parts=parts) as holders:
        for step in (STEP, STEP + 1):
            flats = gradients(3, 1000, seed=step)
            wanted = torch.stack(flats).double().sum(0)
            squares = await holders.step(flats, step)
            assert_bit_identical(flats)
            assert float((flats[0].double() - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
            found = [StepReceipts(parts=one.take_receipts()).of(shared=False) for one in holders._reduces.values()]
            assert found[0] == found[1] == found[2]
            assert [part.index for part in found[0]] == list(holders.bucket.reduction.owners)
            assert {squares_of(part.squares for part in found[0])} == set(squares)


CHAIN = ((0, 0, 1, 2), (1, 1, 1, 2), (1, 2, 2, 2), (1, 2, 3, 3))
TWO_LEVELS = ((0, 0, 0, 2), (1, 1, 3, 1), (2, 0, 2, 2), (1, 3, 3, 3))
MIXED = ((), (3, 1, 1, 1), (), (3, 0, 1, 3))
"""Trees of four holders: along a chain; within two pairs, then between them; some parts directly."""


@pytest.mark.parametrize("trees", [CHAIN, TWO_LEVELS, MIXED])
@pytest.mark.parametrize("parts", [(), (WHOLE - 9, 0, 4, 5)])
@pytest.mark.parametrize("elements", [3, 1001])
async def test_along_trees_every_holder_ends_with_the_same_bits_of_the_sum(
    elements: int, parts: tuple[int, ...], trees: Trees
) -> None:
    flats = gradients(4, elements)
    wanted = torch.stack(flats).double().sum(0)
    async with Holders.running(4, elements, parts=parts, trees=trees) as holders:
        squares = await holders.step(flats)
        found = [StepReceipts(parts=one.take_receipts()).of(shared=False) for one in holders._reduces.values()]
    assert_bit_identical(flats)
    assert len(set(squares)) == 1
    torch.testing.assert_close(flats[0].double(), wanted, rtol=1e-6, atol=1e-9)
    assert all(one == found[0] for one in found)
    assert [part.index for part in found[0]] == list(holders.bucket.reduction.owners)


@pytest.mark.parametrize("trees", [CHAIN, TWO_LEVELS, MIXED])
async def test_along_trees_a_number_is_rounded_once_on_the_way_and_once_in_the_total(trees: Trees) -> None:
    """As when all send directly: a chain of four would round four times if sums went on as they are coded."""
    flats = gradients(4, 1001)
    magnitude, wanted = torch.stack(flats).abs().sum(0).double(), torch.stack(flats).double().sum(0)
    async with Holders.running(4, 1001, "bf16", trees=trees) as holders:
        await holders.step(flats)
        sent = {name: exchange.bytes_sent for name, exchange in holders.exchanges.items()}
    assert_bit_identical(flats)
    assert ((flats[0].double() - wanted).abs() <= 2.0**-8 * (magnitude + wanted.abs()) * 1.01).all()
    one, sizes = holders.bucket.reduction, [high - low for low, high in holders.bucket.parts]
    for place, name in enumerate(holders.names):
        ups = [
            sizes[index] * (4 if one.children(index, place) else 2) + HEADER_BYTES
            for index in one.owners
            if index != place
        ]
        downs = [
            sizes[index] * 2 + HEADER_BYTES + SEAL_BYTES for index in one.owners for _ in one.children(index, place)
        ]
        assert sent[name] == sum(ups) + sum(downs)


async def test_who_sums_nothing_takes_no_part_of_its_own() -> None:
    async with Holders.running(2, 10, parts=(WHOLE, 0)) as holders:
        owner, other = holders.names
        holders.expect(owner, STEP)
        holders.expect(other, STEP)
        await holders.send(owner, other, Key(Kind.REDUCED, STEP, 1, 7), to_bytes(encode(torch.ones(5), "fp32")))
        with pytest.raises(PeerLost) as caught:
            await holders.reduce(other, STEP, torch.ones(10))
        assert caught.value.peer == owner


@given(holders=st.integers(1, 4), elements=st.integers(1, 300), codec=st.sampled_from(CODECS), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_replicas_stay_bit_identical_whatever_they_hold(
    holders: int, elements: int, codec: CodecName, seed: int
) -> None:
    async def steps() -> None:
        async with Holders.running(holders, elements, codec) as running:
            for step in range(1, 4):
                flats = gradients(holders, elements, seed=seed + step)
                await running.step(flats, step)
                assert_bit_identical(flats)

    asyncio.run(steps())


@pytest.mark.parametrize("codec", CODECS)
async def test_the_speed_of_holders_does_not_change_the_bits(codec: CodecName) -> None:
    async def uneven(function: Callable[..., Any], *arguments: Any) -> Any:
        for _ in range(delays.pop()):
            await asyncio.sleep(0)
        return function(*arguments)

    results = []
    for seed in range(3):
        delays = torch.randint(0, 9, (500,), generator=torch.Generator().manual_seed(seed)).tolist()
        flats = gradients(5, 77)
        await reduce_all(flats, codec, uneven)
        assert_bit_identical(flats)
        results.append(flats[0])
    assert_bit_identical(results)


@pytest.mark.parametrize("codec", CODECS)
async def test_one_holder_keeps_its_values_and_sends_nothing(codec: CodecName) -> None:
    (flat,) = flats = gradients(1, 10)
    before = flat.clone()
    (square,) = await reduce_all(flats, codec)
    assert torch.equal(flat, before)
    assert square == pytest.approx(float(before.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("holders", [2, 3])
async def test_what_int8_leaves_out_of_one_step_comes_with_a_later_one(holders: int) -> None:
    """A coordinate far below half a level of its block is never sent without it, and its sum drifts away."""
    steps, elements = 25, 300

    def drawn(step: int) -> list[torch.Tensor]:
        flats = gradients(holders, elements, spread=1e-3, seed=step)
        for flat in flats:
            flat[::97] += 1.0
            flat[5] = 3e-3
        return flats

    true, found, plain = torch.zeros(elements).double(), torch.zeros(elements).double(), torch.zeros(elements).double()
    async with Holders.running(holders, elements, "int8") as kept:
        for step in range(1, steps + 1):
            true += torch.stack(drawn(step)).double().sum(0)
            flats = drawn(step)
            await kept.step(flats, step)
            found += flats[0]
            forgetful = drawn(step)
            await reduce_all(forgetful, "int8")
            plain += forgetful[0]
    level = (holders + 0.1) / 127  # of a sum whose largest values are one a holder
    assert float((found - true).abs().max()) <= level
    assert float((plain - true).abs().max()) > 3 * level
    assert plain[5] == 0.0
    assert found[5] == pytest.approx(float(true[5]), abs=level)


@pytest.mark.parametrize("codec", CODECS)
async def test_all_holders_have_the_same_receipts_in_the_owners_words(codec: CodecName) -> None:
    async with Holders.running(3, 100, codec) as holders:
        squares = await holders.step(gradients(3, 100))
        found = [StepReceipts(parts=one.take_receipts()).of(shared=False) for one in holders._reduces.values()]
        assert found[0] == found[1] == found[2]
        assert [part.index for part in found[0]] == [0, 1, 2]
        assert squares_of(part.squares for part in found[0]) == squares[0]
        for part, owner in zip(found[0], holders.names, strict=True):
            seal = Seal(bytes.fromhex(part.sha256), bytes.fromhex(part.seal))
            key = Key(Kind.REDUCED, STEP, part.index, 7)
            FrameSeals(signer_of("anybody"), 1).check(owner, key, seal, part.squares)
        assert not any(one.take_receipts() for one in holders._reduces.values())
