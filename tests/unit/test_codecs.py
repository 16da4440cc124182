"""Wire codecs: what is exact is exact, what is lossy is so by a known bound."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dtfm_protocol.codecs import ITEM_BYTES, decode, encode, payload_bytes
from dtfm_protocol.errors import Refused
from dtfm_protocol.job import Wire

WIRES: list[Wire] = ["fp32", "fp16", "bf16"]
shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5)


def tensors(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[torch.Tensor]:
    return arrays.arrays(np.float32, shapes, elements=numbers).map(torch.tensor)


def round_trip(tensor: torch.Tensor, wire: Wire) -> torch.Tensor:
    payload, scale = encode(tensor, wire)
    assert len(payload) == payload_bytes(wire, tuple(tensor.shape))
    return decode(bytes(payload), scale, wire, tuple(tensor.shape))


@given(tensor=tensors(st.floats(width=32, allow_nan=False)))
@settings(max_examples=80, deadline=None)
def test_fp32_is_the_identity_to_the_last_bit(tensor: torch.Tensor) -> None:
    found = round_trip(tensor, "fp32")
    assert found.dtype == torch.float32
    assert found.shape == tensor.shape
    assert torch.equal(found.view(torch.int32), tensor.view(torch.int32))


@given(tensor=tensors(st.floats(-(2.0**100), 2.0**100, width=32)))
@settings(max_examples=80, deadline=None)
def test_bf16_keeps_eight_bits_of_every_value(tensor: torch.Tensor) -> None:
    found = round_trip(tensor, "bf16")
    normal = tensor.abs() >= 2.0**-126
    assert found.dtype == torch.float32
    assert ((found - tensor).abs() <= tensor.abs() * 2.0**-8)[normal].all()


@given(tensor=tensors(st.floats(-(2.0**100), 2.0**100, width=32)))
@settings(max_examples=80, deadline=None)
def test_fp16_keeps_eleven_bits_near_the_largest_and_is_off_by_little_of_it_elsewhere(tensor: torch.Tensor) -> None:
    """Half precision: a unit in the last place of 2^-11 for normal numbers, steps of 2^-24 of the largest below."""
    found = round_trip(tensor, "fp16")
    largest = float(tensor.abs().max())
    if largest > 1e-30:
        bound = tensor.abs().double() * 2.0**-10 + largest * 2.0**-24
        assert ((found.double() - tensor.double()).abs() <= bound).all()


@pytest.mark.parametrize("magnitude", [1e-9, 1e-20, 1e-30, 1.0, 1e9, 3e38])
def test_fp16_keeps_the_precision_of_gradients_of_any_magnitude(magnitude: float) -> None:
    """1e-9 is below half precision's smallest number: without a scale nothing of it would be left."""
    gradient = torch.linspace(0.05, 1.0, 200) * magnitude
    torch.testing.assert_close(round_trip(gradient, "fp16"), gradient, rtol=2.0**-10, atol=0)


@pytest.mark.parametrize("wire", WIRES)
def test_a_part_without_elements_is_no_bytes(wire: Wire) -> None:
    """A bucket may have fewer elements than holders."""
    nothing = torch.ones(9)[4:4]
    assert len(encode(nothing, wire)[0]) == 0
    assert torch.equal(round_trip(nothing, wire), nothing)


@pytest.mark.parametrize("wire", WIRES)
def test_zeros_stay_zeros(wire: Wire) -> None:
    assert torch.equal(round_trip(torch.zeros(3, 4), wire), torch.zeros(3, 4))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_does_not_become_finite(wire: Wire, value: float) -> None:
    """Divergence must be seen on the other side, too."""
    assert not torch.isfinite(round_trip(torch.tensor([1.0, value, 2.0]), wire)).all()


@pytest.mark.parametrize("wire", WIRES)
def test_a_decoded_tensor_coded_again_is_the_same_bytes(wire: Wire) -> None:
    """Who owns a part of a sum takes what the wire makes of it: coding it twice must not drift."""
    once = round_trip(torch.randn(64, generator=torch.Generator().manual_seed(0)), wire)
    assert torch.equal(round_trip(once, wire), once)


@given(wire=st.sampled_from(WIRES), shape=shapes, off=st.integers(-40, 40).filter(bool))
@settings(max_examples=60, deadline=None)
def test_any_other_length_than_the_shapes_is_refused(wire: Wire, shape: tuple[int, ...], off: int) -> None:
    size = payload_bytes(wire, shape) + off
    if size >= 0:
        with pytest.raises(Refused, match=f"{size} bytes are not a {wire} tensor"):
            decode(bytes(size), 1.0, wire, shape)


@pytest.mark.parametrize("wire", WIRES)
def test_a_payloads_size_is_its_elements_times_their_width(wire: Wire) -> None:
    assert payload_bytes(wire, (2, 3, 5)) == 30 * ITEM_BYTES[wire]
    assert payload_bytes(wire, (1 << 20, 1 << 20)) == ITEM_BYTES[wire] << 40


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_decodes_and_none_that_is_shared_is_changed(wire: Wire, kind: type) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    payload, scale = encode(tensor, wire)
    data = bytes(payload)
    found = decode(kind(data), scale, wire, (2, 3))
    torch.testing.assert_close(found, tensor, rtol=1e-2, atol=0)
    found.add_(1)
    assert data == bytes(encode(tensor, wire)[0])


@pytest.mark.parametrize("wire", WIRES)
def test_tensors_in_other_forms_are_coded_by_value(wire: Wire) -> None:
    tensor = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    wanted = bytes(encode(tensor.t().contiguous(), wire)[0])
    assert bytes(encode(tensor.t(), wire)[0]) == wanted
    assert bytes(encode(tensor.t().clone().requires_grad_(), wire)[0]) == wanted
    assert bytes(encode(tensor.t().double(), wire)[0]) == wanted


def test_bytes_are_little_endian_and_row_major() -> None:
    assert bytes(encode(torch.tensor([[1.0, 2.0]]), "fp32")[0]) == np.array([1.0, 2.0], "<f4").tobytes()
    assert bytes(encode(torch.tensor([[1.0, -2.0]]), "bf16")[0]) == b"\x80\x3f\x00\xc0"
    payload, scale = encode(torch.tensor([[1.0, -2.0]]), "fp16")
    assert (bytes(payload), scale) == (np.array([0.5, -1.0], "<f2").tobytes(), 2.0)
