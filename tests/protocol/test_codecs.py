"""Wire codecs: what is exact is exact, what is lossy is so by a known bound."""

import math
import typing
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.wire.codec_sizes import BYTES_A_VALUE
from dtfm_protocol.wire.codecs import BLOCK, decode, encode, from_bytes, is_finite, payload_bytes, to_bytes

CODECS: tuple[CodecName, ...] = typing.get_args(CodecName)
every_codec = pytest.mark.parametrize("codec", CODECS)
shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9)


def tensors(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[torch.Tensor]:
    return arrays.arrays(np.float32, shapes, elements=numbers).map(torch.tensor)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def coded(tensor: torch.Tensor, codec: CodecName) -> bytes:
    return bytes(to_bytes(encode(tensor, codec)))


def round_trip(tensor: torch.Tensor, codec: CodecName) -> torch.Tensor:
    data = coded(tensor, codec)
    assert len(data) == payload_bytes(codec, tuple(tensor.shape))
    found = decode(from_bytes(data), codec, tuple(tensor.shape))
    assert found.dtype == torch.float32
    assert found.shape == tensor.shape
    return found


def blocks(tensor: torch.Tensor) -> torch.Tensor:
    """Values in runs that share a scale in int8, [blocks, BLOCK]; the last one is filled up with zeros."""
    flat = tensor.reshape(-1)
    return torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)


@given(tensor=tensors(st.floats(width=32, allow_nan=False, allow_infinity=False)))
@settings(max_examples=80, deadline=None)
def test_fp32_is_the_identity_to_the_last_bit(tensor: torch.Tensor) -> None:
    assert torch.equal(round_trip(tensor, "fp32").view(torch.int32), tensor.view(torch.int32))


@given(tensor=tensors(st.floats(-(2.0**100), 2.0**100, width=32)))
@settings(max_examples=80, deadline=None)
def test_bf16_keeps_eight_bits_of_every_value(tensor: torch.Tensor) -> None:
    found = round_trip(tensor, "bf16")
    normal = tensor.abs() >= 2.0**-126
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


@given(tensor=tensors(st.floats(-(2.0**100), 2.0**100, width=32)))
@settings(max_examples=80, deadline=None)
def test_int8_is_off_by_half_a_level_of_its_blocks_largest_magnitude(tensor: torch.Tensor) -> None:
    """Magnitudes of 1e-30 and more: below, the scale itself has too few bits."""
    largest = blocks(tensor.double()).abs().amax(1, keepdim=True)
    off = (blocks(round_trip(tensor, "int8").double()) - blocks(tensor.double())).abs()
    assert (off <= largest / 127 * (0.5 + 1e-4))[(largest > 1e-30).expand_as(off)].all()


@pytest.mark.parametrize("elements", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_in_int8_a_large_value_spoils_its_own_block_alone(elements: int) -> None:
    tensor = normal(elements)
    tensor[-1] = 1e6
    found, whole = round_trip(tensor, "int8"), (elements - 1) // BLOCK * BLOCK
    assert found[-1] == pytest.approx(1e6, rel=1e-6)
    assert torch.equal(found[:whole], round_trip(tensor[:whole], "int8"))
    torch.testing.assert_close(found[:whole], tensor[:whole], rtol=0, atol=4 / 254)


@pytest.mark.parametrize("units", [1, 63, 64, 127, 190, 317, 444, 10_000])
def test_in_int8_magnitudes_that_leave_the_scale_few_bits_stay_as_small_and_keep_their_sign(units: int) -> None:
    """The smallest numbers of fp32: 190 units of 2^-149 are 190 levels of a scale of one unit."""
    gradient = torch.linspace(-units, units, 64) * 2.0**-149
    found = round_trip(gradient, "int8")
    assert bool((found * gradient.sign() >= 0).all())
    assert float(found.abs().max()) <= 2.0 * units * 2.0**-149


@pytest.mark.parametrize("codec", ["fp16", "int8"])
@pytest.mark.parametrize("magnitude", [1e-9, 1e-20, 1e-30, 1.0, 1e9, 3e38])
def test_scaled_codecs_keep_the_precision_of_gradients_of_any_magnitude(codec: CodecName, magnitude: float) -> None:
    """1e-9 is below half precision's smallest number: without a scale nothing of it would be left."""
    gradient = torch.linspace(0.05, 1.0, 200) * magnitude
    close: dict[str, Any] = (
        {"rtol": 2.0**-10, "atol": 0.0} if codec == "fp16" else {"rtol": 0.0, "atol": magnitude / 253}
    )
    torch.testing.assert_close(round_trip(gradient, codec), gradient, **close)


@every_codec
def test_a_part_without_elements_is_no_bytes(codec: CodecName) -> None:
    """A bucket may have fewer elements than holders."""
    nothing = torch.ones(9)[4:4]
    assert coded(nothing, codec) == b""
    assert torch.equal(round_trip(nothing, codec), nothing)
    assert round_trip(torch.zeros(3, 0, 2), codec).shape == (3, 0, 2)


@every_codec
@pytest.mark.parametrize("shape", [(1,), (3, 4), (300,)])
def test_zeros_stay_zeros(codec: CodecName, shape: tuple[int, ...]) -> None:
    assert torch.equal(round_trip(torch.zeros(shape), codec), torch.zeros(shape))


@every_codec
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 5, BLOCK, 2 * BLOCK + 1])
def test_what_is_not_finite_stays_so_and_is_refused(codec: CodecName, value: float, place: int) -> None:
    tensor = normal(2 * BLOCK + 2)
    tensor[place] = value
    with pytest.raises(Refused, match="not finite"):
        round_trip(tensor, codec)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize(("codec", "level"), [("fp16", b"\x00\x4f"), ("int8", b"\x7f")])
def test_a_scale_that_makes_values_not_finite_is_refused(codec: CodecName, level: bytes, scale: float) -> None:
    """What another peer may send where this one would not: 28 and 127 times the scale."""
    data = np.float32(scale).tobytes() + level
    with pytest.raises(Refused, match="not finite"):
        decode(from_bytes(data), codec, (1,))


@given(codec=st.sampled_from(CODECS), values=st.integers(0, 300), data=st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_bytes_come_they_are_finite_values_or_refused(
    codec: CodecName, values: int, data: st.DataObject
) -> None:
    size = payload_bytes(codec, (values,))
    payload = data.draw(st.binary(min_size=size, max_size=size))
    try:
        found = decode(from_bytes(payload), codec, (values,))
    except Refused:
        return
    assert found.shape == (values,)
    assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16"])
def test_a_decoded_tensor_coded_again_is_the_same_bytes(codec: CodecName) -> None:
    once = round_trip(normal(300), codec)
    assert torch.equal(round_trip(once, codec), once)


def test_in_int8_a_decoded_tensor_coded_again_keeps_its_levels() -> None:
    """Its scale may differ in the last bit, as 127 times a number and the 127th of that are rounded."""
    once = round_trip(normal(300), "int8")
    torch.testing.assert_close(round_trip(once, "int8"), once, rtol=1e-6, atol=0)


@every_codec
def test_the_size_of_every_codec_of_the_job_file_is_known(codec: CodecName) -> None:
    assert payload_bytes(codec, (3, 100)) == len(encode(torch.ones(3, 100), codec))
    assert BYTES_A_VALUE.keys() == set(CODECS)


def test_no_size_is_made_up_for_a_codec_that_is_not_known() -> None:
    with pytest.raises(AssertionError, match="fp4"):
        payload_bytes(typing.cast(CodecName, "fp4"), (3, 100))


@given(codec=st.sampled_from(CODECS), shape=shapes, off=st.integers(-40, 40).filter(bool))
@example(codec="int8", shape=(BLOCK + 1,), off=-4)
@example(codec="fp16", shape=(2,), off=-4)
@settings(max_examples=80, deadline=None)
def test_any_other_length_than_the_shapes_is_refused(codec: CodecName, shape: tuple[int, ...], off: int) -> None:
    size = payload_bytes(codec, shape) + off
    if size >= 0:
        with pytest.raises(Refused, match=f"{size} bytes are not a tensor of shape .* in {codec}"):
            decode(from_bytes(bytes(size)), codec, shape)


@pytest.mark.parametrize(
    ("codec", "sizes"),
    [
        ("fp32", {0: 0, 1: 4, 30: 120, 1 << 40: 4 << 40}),
        ("bf16", {0: 0, 1: 2, 30: 60, 1 << 40: 2 << 40}),
        ("fp16", {0: 0, 1: 6, 30: 64, 1 << 40: (2 << 40) + 4}),
        ("int8", {0: 0, 1: 5, 127: 131, 128: 132, 129: 137, 256: 264, 257: 269, 1 << 40: (1 << 40) + (1 << 35)}),
    ],
)
def test_a_payload_is_its_values_and_their_scales_before_them(codec: CodecName, sizes: dict[int, int]) -> None:
    """fp16 has one scale of 4 bytes, int8 one for every started block of 128."""
    for values, size in sizes.items():
        assert payload_bytes(codec, (values,)) == size
        if values < 1000:
            assert len(encode(torch.ones(values), codec)) == size
    assert payload_bytes(codec, (2, 3, 5)) == payload_bytes(codec, (30,))
    assert BYTES_A_VALUE[codec] == pytest.approx(payload_bytes(codec, (1 << 40,)) / (1 << 40), rel=1e-9)


@every_codec
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_decodes_and_none_that_is_shared_is_changed(codec: CodecName, kind: type) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    data = coded(tensor, codec)
    found = decode(from_bytes(kind(data)), codec, (2, 3))
    torch.testing.assert_close(found, tensor, rtol=1e-2, atol=0.02)
    found.add_(1)
    assert data == coded(tensor, codec)


def test_bytes_that_may_be_written_to_are_not_copied() -> None:
    data = bytearray(b"\x01\x02\x03\x04")
    received = from_bytes(data)
    data[1] = 77
    assert received.tolist() == [1, 77, 3, 4]
    assert from_bytes(memoryview(data)[1:3]).tolist() == [77, 3]
    data[1] = 88
    assert from_bytes(memoryview(data)[1:3].toreadonly()).tolist() == [88, 3]


def test_bytes_that_may_not_be_written_to_are_copied() -> None:
    data = bytes([1, 2, 3])
    from_bytes(data)[0] = 9
    from_bytes(memoryview(data))[0] = 9
    assert data == b"\x01\x02\x03"


def test_in_fp32_nothing_is_copied_on_either_side() -> None:
    tensor = normal(4, 6).requires_grad_()
    data = to_bytes(encode(tensor[1:3], "fp32"))
    with torch.no_grad():
        tensor[1, 0] = 42.0
    assert np.frombuffer(data, np.float32)[0] == 42.0
    received = bytearray(data)
    decoded = decode(from_bytes(received), "fp32", (2, 6))
    received[:4] = np.float32(43.0).tobytes()
    assert float(decoded[0, 0]) == 43.0


@every_codec
def test_tensors_in_other_forms_are_coded_by_value(codec: CodecName) -> None:
    tensor = normal(4, 60, seed=1)
    wanted = coded(tensor.t().contiguous(), codec)
    assert coded(tensor.t(), codec) == wanted
    assert coded(tensor.t().clone().requires_grad_(), codec) == wanted
    assert coded(tensor.t().double(), codec) == wanted
    low = tensor.bfloat16()
    assert coded(low, codec) == coded(low.float(), codec)


def test_bytes_are_little_endian_and_row_major_with_scales_before() -> None:
    assert coded(torch.tensor([[1.0, 2.0]]), "fp32") == np.array([1.0, 2.0], "<f4").tobytes()
    assert coded(torch.tensor([[1.0, -2.0]]), "bf16") == b"\x80\x3f\x00\xc0"
    assert coded(torch.tensor([[1.0, -2.0]]), "fp16") == (
        np.array([2.0], "<f4").tobytes() + np.array([0.5, -1.0], "<f2").tobytes()
    )
    values = torch.full((BLOCK + 2,), 127.0)
    values[1], values[-2:] = -64.0, torch.tensor([254.0, -4.0])
    assert coded(values, "int8") == (
        np.array([1.0, 2.0], "<f4").tobytes() + np.array([127, -64, *[127] * (BLOCK - 2), 127, -2], "i1").tobytes()
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_value_that_is_not_finite_is_found_anywhere(value: float, place: int) -> None:
    values = normal(1000)
    assert is_finite(values)
    values[place] = value
    assert not is_finite(values)
    assert is_finite(values[place:place])
