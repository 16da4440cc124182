"""Moments in 8 bits: the nearest of 256 levels by blocks, to the last bit."""

import numpy as np
import pytest
import torch

from dtfm_node.engine.dynamic_quantisation import BlockwiseMoment, levels_of
from tests.node import kept_reference
from tests.node.kept_reference import BLOCK, Array
from tests.node.state_digests import extremes

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
SIGNED = pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])


def moment(elements: int, signed: bool) -> BlockwiseMoment:
    blocks = -(-elements // BLOCK)
    return BlockwiseMoment(torch.zeros(elements, dtype=torch.uint8), torch.zeros(blocks), levels_of(signed, CPU))


def kept(values: Array, signed: bool, step: int | None = None) -> BlockwiseMoment:
    """`values`, kept in runs of `step`."""
    found = moment(len(values), signed)
    step = step or len(values)
    for first in range(0, len(values), step):
        end = min(first + step, len(values))
        found.keep(first, end, torch.from_numpy(values[first:end].copy()))
    return found


def widened(found: BlockwiseMoment) -> Array:
    room = torch.empty(len(found.codes))
    values: Array = found.widened(0, len(room), room).numpy()
    return values


def drawn(elements: int, signed: bool) -> Array:
    values = extremes(3, (elements,))
    return values if signed else np.abs(values)


@SIGNED
def test_the_levels_are_the_middles_of_parts_of_decades(signed: bool) -> None:
    levels = levels_of(signed, CPU).values.numpy()
    np.testing.assert_array_equal(levels.view(np.uint32), kept_reference.levels(signed).view(np.uint32))
    assert (np.diff(levels) > 0).all()
    assert levels[-1] == 1
    assert (0 in levels) == signed


@SIGNED
def test_no_two_middles_share_their_upper_bits(signed: bool) -> None:
    """Else looking at the upper bits and one middle would not find the nearest level."""
    upper = levels_of(signed, CPU).middles.numpy()[:-1].view(np.uint32) >> 16
    assert len(set(upper)) == 255


@SIGNED
def test_every_value_is_kept_as_the_nearest_level_and_of_two_the_lower(signed: bool) -> None:
    """Around every middle, and at the ends of all values that share their upper bits."""
    middles = levels_of(signed, CPU).middles.numpy()[:-1].view(np.int32)
    around = np.concatenate([middles + ulps for ulps in (-1, 0, 1)]).astype(np.int32).view(np.float32)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    ends = np.concatenate([upper, upper | 0xFFFF]).view(np.float32)
    values = np.concatenate([around, ends[np.abs(ends) <= 1]])
    values = values if signed else values[values >= 0]
    blocks = np.resize(values, (-(-len(values) // 255), 255))
    blocks = np.concatenate([blocks, np.ones((len(blocks), 1), np.float32)], axis=1).ravel()  # each block's scale is 1
    found = kept(blocks, signed)
    assert (found.scales == 1).all()
    np.testing.assert_array_equal(found.codes.numpy(), kept_reference.quantised(blocks, signed)[0])


@SIGNED
@pytest.mark.parametrize("elements", [1, 255, 256, 257, 1000, 4 * BLOCK])
def test_every_bit_is_that_of_the_stated_operations_however_it_is_cut(elements: int, signed: bool) -> None:
    values = drawn(elements, signed)
    codes, scales = kept_reference.quantised(values, signed)
    for step in (None, BLOCK, 2 * BLOCK):
        found = kept(values, signed, step)
        np.testing.assert_array_equal(found.codes.numpy(), codes)
        np.testing.assert_array_equal(found.scales.numpy().view(np.uint32), scales.view(np.uint32))
        wanted = kept_reference.dequantised(codes, scales, signed)
        np.testing.assert_array_equal(widened(found).view(np.uint32), wanted.view(np.uint32))


@SIGNED
def test_what_is_kept_is_near(signed: bool) -> None:
    """To half a part of its decade, and to a part in 128 of the block's largest."""
    values = np.random.default_rng(1).normal(size=10 * BLOCK).astype(np.float32)
    values = values if signed else values**2
    found, scales = widened(kept(values, signed)), np.repeat(np.abs(values).reshape(-1, BLOCK).max(1), BLOCK)
    assert (np.abs(found - values) <= scales / 128).all()
    large = np.abs(values) > scales / 10
    assert (np.abs(found - values)[large] <= 0.08 * np.abs(values)[large]).all()


@SIGNED
def test_zeros_stay_zeros(signed: bool) -> None:
    assert not widened(kept(np.zeros(300, np.float32), signed)).any()


def test_a_second_moment_is_not_rounded_to_zero_beside_a_large_one() -> None:
    values = np.full(BLOCK, 1e-20, np.float32)
    values[7] = 1.0
    assert (widened(kept(values, signed=False)) > 0).all()


def test_infinities_become_the_largest_number() -> None:
    """An update whose gradients are too large to be squared stays one number on all devices."""
    values = np.array([np.inf, 1.0, 0.0], np.float32)
    found = widened(kept(values, signed=False))
    assert found[0] == np.finfo(np.float32).max
    assert np.isfinite(found).all()
