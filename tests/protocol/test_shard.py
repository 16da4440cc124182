"""Tensors as bytes in a checkpoint, and what is refused of them."""

import json
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from dtfm_protocol.checkpoint.manifest import File, Manifest, TensorEntry
from dtfm_protocol.checkpoint.shard import (
    decode_tensor,
    describe_shard,
    digest_weights,
    encode_shard,
    shard_header,
    tensor_entry,
)
from dtfm_protocol.errors import Refused, UserError

NAME = "stage-0.safetensors"


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "weight/a": torch.randn(3, 5, generator=generator),
        "exp_avg/a": torch.randn(5, 3, generator=generator).T,  # not contiguous
        "exp_avg_sq/a": torch.randn(3, 5, generator=generator).bfloat16(),
        "weight/b": torch.tensor(2.5, dtype=torch.float64),
        "weight/none": torch.empty(0, 4),
    }


def file_of(header: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(first: int, last: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def test_a_shard_is_a_safetensors_file_and_equal_tensors_give_equal_bytes() -> None:
    data = encode_shard(tensors())
    assert data == encode_shard(dict(reversed(tensors().items())))
    read = load(data)
    assert read.keys() == tensors().keys()
    assert all(torch.equal(read[key], value) for key, value in tensors().items())


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc")
def test_a_mapped_file_that_was_described_takes_no_memory_of_the_process(tmp_path: Path) -> None:
    path, values = tmp_path / NAME, {f"weight/{name}": torch.ones(1 << 22) for name in "abc"}
    path.write_bytes(encode_shard(values))
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert describe_shard(NAME, data) == describe_shard(NAME, path.read_bytes())
        lines = Path("/proc/self/smaps").read_text().splitlines()
        at = next(number for number, line in enumerate(lines) if line.endswith(str(path)))
        resident = next(line for line in lines[at:] if line.startswith("Rss:"))
        assert int(resident.split()[1]) < 1024  # kB, of 48 MiB


def test_each_tensor_is_found_by_its_offset_and_comes_back_exactly() -> None:
    data = encode_shard(tensors())
    file, entries = describe_shard(NAME, data, (0, 2))
    assert file.bytes == len(data)
    assert file.layers == (0, 2)
    assert entries.keys() == tensors().keys()
    for key, value in tensors().items():
        entry = entries[key]
        read = decode_tensor(entry, memoryview(data)[entry.offset : entry.offset + entry.bytes])
        assert read.dtype == value.dtype
        assert torch.equal(read, value)
        read.zero_()  # memory of its own


def test_bytes_that_are_not_those_of_the_tensor_are_refused() -> None:
    data = encode_shard(tensors())
    entry = describe_shard(NAME, data)[1]["weight/a"]
    raw = data[entry.offset : entry.offset + entry.bytes]
    with pytest.raises(Refused, match="59 bytes, not 60"):
        decode_tensor(entry, raw[:-1])
    with pytest.raises(Refused, match="another hash"):
        decode_tensor(entry, bytes([raw[0] ^ 1]) + raw[1:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x05\0\0",
        (1 << 40).to_bytes(8, "little") + b"{}",
        file_of(b"not json"),
        file_of(b"[1]"),
        file_of(b"[" * 100_000),
        file_of({"weight/a": 3}),
        file_of({"weight/a": {"dtype": "F32", "shape": [1]}}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [1]) | {"data_offsets": [0.0, 4.0]}}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [1]) | {"data_offsets": 4}}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [2])}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [-1])}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [1] * 100)}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [4], "F8")}, bytes(4)),
        file_of({"weight/a": tensor(0, 8, [2])}, bytes(4)),
        file_of({"weight/a": tensor(4, 0, [1])}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [1])}, bytes(5)),
        file_of({"weight/a": tensor(0, 4, [1]), "weight/b": tensor(0, 4, [1])}, bytes(4)),
        file_of({"weight/a": tensor(0, 4, [1]), "weight/b": tensor(8, 12, [1])}, bytes(12)),
        file_of({"a": tensor(0, 4, [1])}, bytes(4)),
        file_of({"Weight/a": tensor(0, 4, [1])}, bytes(4)),
        file_of({"weight/a\n": tensor(0, 4, [1])}, bytes(4)),
        file_of({"weight/\ud800": tensor(0, 4, [1])}, bytes(4)),
        file_of({f"weight/{'a' * 600}": tensor(0, 4, [1])}, bytes(4)),
        file_of(
            f'{{"weight/a": {json.dumps(tensor(0, 4, [1]))}, "weight/a": {json.dumps(tensor(0, 4, [1]))}}}'.encode(),
            bytes(4),
        ),
    ],
)
def test_what_is_no_sound_safetensors_file_is_refused_on_one_line(data: bytes) -> None:
    with pytest.raises(Refused, match=NAME) as caught:
        describe_shard(NAME, data)
    assert "\n" not in str(caught.value)


def digest_of(weights: dict[str, torch.Tensor]) -> str:
    return digest_weights({name: tensor_entry(NAME, tensor)[0].sha256 for name, tensor in weights.items()})


def test_the_digest_tells_weights_apart_by_name_and_value_only() -> None:
    weights = {"a": torch.zeros(2, 3), "b": torch.ones(2)}
    digest = digest_of(weights)
    assert digest == digest_of({"b": torch.ones(2), "a": torch.zeros(3, 2).T})
    others = [
        {"a": torch.zeros(2, 3), "c": torch.ones(2)},
        {"a": torch.zeros(2, 2), "b": torch.ones(2)},
        {"a": torch.zeros(2, 3), "b": torch.ones(2).double()},
        {"a": torch.zeros(2, 3), "b": torch.tensor([1.0, 1.0000001])},
        {"a": torch.ones(2), "b": torch.zeros(2, 3)},
        {"a": torch.zeros(2, 3)},
    ]
    assert len({digest, *map(digest_of, others)}) == 7


def test_a_header_and_the_tensors_after_it_are_a_safetensors_file() -> None:
    """Which is then written tensor by tensor, without a copy of the whole."""
    header, places = shard_header(tensors())
    pieces = [tensor_entry(NAME, tensor, places[key][0]) for key, tensor in tensors().items()]
    data = header + b"".join(bytes(piece) for _, piece in pieces)
    assert [(entry.offset, entry.bytes) for entry, _ in pieces] == list(places.values())
    file, entries = describe_shard(NAME, data)
    assert entries == dict(zip(tensors(), (entry for entry, _ in pieces), strict=True))
    assert file.bytes == len(data)
    read = load(data)
    assert read.keys() == tensors().keys()
    assert all(torch.equal(read[key], value) and read[key].dtype == value.dtype for key, value in tensors().items())


def test_an_empty_header_is_a_safetensors_file_too() -> None:
    header, places = shard_header({})
    assert (load(header), places) == ({}, {})


def test_an_entry_shares_the_tensors_memory_and_holds_its_bytes_in_row_major_order() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    _, data = tensor_entry(NAME, tensor)
    tensor[0, 0] = 7.0
    assert bytes(data) == tensor.numpy().tobytes()
    entry, data = tensor_entry(NAME, tensor.T, 40)
    assert torch.equal(decode_tensor(entry, data), tensor.T)
    assert (entry.shape, entry.offset, entry.bytes) == ((3, 2), 40, 24)


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "a/b.safetensors", "a\\b.safetensors", ".safetensors", "manifest.json", "", "x.safetensors\n"],
)
def test_a_file_name_cannot_lead_out_of_the_folder(name: str) -> None:
    with pytest.raises(UserError):
        File.read({"name": name, "sha256": "0" * 64, "bytes": 1}, "file")


def test_a_manifest_whose_tensor_lies_outside_its_file_is_refused() -> None:
    entry = TensorEntry(file=NAME, sha256="0" * 64, dtype="F32", shape=(2,), offset=100, bytes=8)
    values = {
        "job": "j",
        "config": {},
        "step": 1,
        "plan_version": 1,
        "files": [{"name": NAME, "sha256": "0" * 64, "bytes": 108}],
        "tensors": {"weight/a": entry.model_dump()},
    }
    Manifest.read(values, "manifest")
    for change, message in [
        ({"files": [{"name": NAME, "sha256": "0" * 64, "bytes": 107}]}, "ends after the end"),
        ({"files": [{"name": "x.safetensors", "sha256": "0" * 64, "bytes": 108}]}, "not among the files"),
        ({"files": values["files"] * 2}, "two have one name"),
        ({"tensors": {"a": entry.model_dump()}}, "tensors"),
    ]:
        with pytest.raises(UserError, match=message):
            Manifest.read(values | change, "manifest")
