"""Weights in bf16: rounded up or down by a hash, without a bias, with the same bits however they are cut."""

import numpy as np
import pytest
import torch

from dtfm_node.engine.stochastic_rounding import StochasticBf16, hashed, rounding_key
from tests.node import kept_reference
from tests.node.kept_reference import Array
from tests.node.state_digests import extremes

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
MANY = 1 << 20


def kept(values: Array, key: int, cut: int | None = None) -> Array:
    """`values` in bf16, as fp32; kept in runs of `cut`."""
    form = StochasticBf16(torch.zeros(len(values), dtype=torch.bfloat16), key)
    for first in range(0, len(values), cut or len(values)):
        end = min(first + (cut or len(values)), len(values))
        form.keep(first, end, torch.from_numpy(values[first:end].copy()))
    found: Array = form.widened(0, len(values), torch.empty(len(values))).numpy()
    return found


def share_of(values: Array, key: int) -> tuple[float, float]:
    """How often values between 1 and the next in bf16, all the same, are rounded up; and how often they should be."""
    return float((kept(values, key) > 1).mean()), (float(values[0]) - 1) * 128


@pytest.mark.parametrize(("seed", "wanted"), [(0, 0), (1, 0x514E28B7), (0xFFFFFFFF, 0x81F16F39)])
def test_the_reference_mixes_as_murmurhash3_does(seed: int, wanted: int) -> None:
    """Its published hashes of no bytes with these seeds."""
    assert kept_reference.mixed(np.array([seed], np.uint32))[0] == wanted


@pytest.mark.parametrize("elements", [1, 7, 1001, 70_000])
def test_every_bit_is_that_of_the_stated_operations_however_it_is_cut(elements: int) -> None:
    values = extremes(5, (elements,))
    wanted = kept_reference.rounded(values, 3, 9, "model.norm.weight")
    for cut in (None, 256, 512):
        found = kept(values, rounding_key(3, 9, "model.norm.weight"), cut)
        np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_places_beyond_int32_have_hashes_too() -> None:
    """As an embedding's may be: they go on where 2^31 ends, and begin anew at 2^32."""
    around = hashed((1 << 31) - 3, (1 << 31) + 3, 77, CPU)
    wanted = kept_reference.mixed((np.arange(6, dtype=np.uint32) + np.uint32((1 << 31) - 3)) ^ np.uint32(77)) >> 16
    np.testing.assert_array_equal(around.numpy().astype(np.uint32), wanted)
    assert torch.equal(hashed(1 << 32, (1 << 32) + 5, 77, CPU), hashed(0, 5, 77, CPU))


@pytest.mark.parametrize("part", [2.0**-16, 0.01, 0.3, 0.5, 0.9, 1 - 2.0**-16])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_on_average_nothing_is_lost(part: float, sign: float) -> None:
    """Over many values of a parameter, to four standard deviations: those of a throw of as many unfair coins."""
    values = np.full(MANY, 1 + part / 128, np.float32) * np.float32(sign)
    found = kept(values, rounding_key(0, 1, "w")) * sign
    assert set(found) <= {1.0, 1 + 1 / 128}
    share, wanted = float((found > 1).mean()), (abs(float(values[0])) - 1) * 128
    assert abs(share - wanted) <= 4 * (wanted * (1 - wanted) / MANY) ** 0.5


def test_a_value_is_rounded_anew_at_every_step() -> None:
    """Over many steps of one value, to four standard deviations."""
    steps, part = 20_000, 0.3
    values = np.full(3, 1 + part / 128, np.float32)
    up = sum(kept(values, rounding_key(0, step, "w")) > 1 for step in range(steps))
    assert (np.abs(up / steps - part) <= 4 * (part * (1 - part) / steps) ** 0.5).all()


def test_what_bf16_has_stays_as_it_is() -> None:
    values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    values = values[np.isfinite(values)]
    np.testing.assert_array_equal(kept(values, 12345).view(np.uint32), values.view(np.uint32))


def test_keys_differ_by_seed_step_and_name() -> None:
    keys = {rounding_key(seed, step, name) for seed in (0, 1, 11) for step in (1, 11, 111) for name in ("w", "1\nw")}
    assert len(keys) == 18
