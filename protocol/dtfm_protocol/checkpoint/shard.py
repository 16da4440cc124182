"""Tensors as safetensors bytes, and back. What comes from the network is checked before it becomes a tensor."""

import json
import mmap
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from dtfm_protocol.bounds import printable
from dtfm_protocol.checkpoint.manifest import File, Key, TensorEntry
from dtfm_protocol.checkpoint.state_slots import DType
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.plan.peer_state import LayerRange

if TYPE_CHECKING:
    import torch

Bytes = bytes | bytearray | memoryview | mmap.mmap
"""Bytes in memory or in a file that is mapped into it."""

_TORCH: dict[DType, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "U8": "uint8",
    "I8": "int8",
}
"""The name in `torch` of each dtype."""
_KEY: TypeAdapter[str] = TypeAdapter(Key)
_PIECE_BYTES = 1 << 24
"""Bytes that are hashed at a time."""
HEADER_LIMIT = 100 << 20
"""Bytes of the largest header of a safetensors file: the limit of the safetensors library itself."""


def encode_shard(tensors: "Mapping[str, torch.Tensor]") -> bytes:
    """Encode the tensors, keyed as in the manifest, as one safetensors file; equal tensors give equal bytes."""
    from safetensors.torch import save

    data: bytes = save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
    return data


def shard_header(tensors: "Mapping[str, torch.Tensor]") -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the start of a safetensors file of these tensors, and each one's offset and size in bytes after that
    start.

    The tensors' values are not looked at. The format: https://github.com/huggingface/safetensors#format.
    """
    import torch

    names = {getattr(torch, torch_name): name for name, torch_name in _TORCH.items()}
    values: dict[str, dict[str, Any]] = {}
    places, end = {}, 0
    for key, tensor in tensors.items():
        places[key] = (end, tensor.nbytes)
        values[key] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(values, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {key: (len(header) + first, size) for key, (first, size) in places.items()}


def tensor_entry(file: str, tensor: "torch.Tensor", offset: int = 0) -> tuple[TensorEntry, Any]:
    """Return a manifest's entry for a tensor, and its bytes, which share its memory where it lies on the CPU."""
    import torch

    names = {getattr(torch, torch_name): name for name, torch_name in _TORCH.items()}
    data = tensor_bytes(tensor)
    entry = TensorEntry(
        file=file,
        sha256=sha256(data).hexdigest(),
        dtype=names[tensor.dtype],
        shape=tuple(tensor.shape),
        offset=offset,
        bytes=data.nbytes,
    )
    return entry, data


def describe_shard(name: str, data: Bytes, layers: LayerRange | None = None) -> tuple[File, dict[str, TensorEntry]]:
    """Return the manifest's entries for a safetensors file, which may come from anyone.

    Args:
        name: the file's name in the checkpoint.
        data: the whole file; a memory map is read once, piece by piece.
        layers: decoder layers `[first, end)` of the stage.

    Raises:
        Refused: `data` is not a safetensors file, or one whose tensors do not fill it without gap or overlap, or have
            names that no tensor of a state has.
    """
    view = memoryview(data)
    try:
        start, header = _header(name, view)
        file = File(name=name, sha256=_hashed(data, view, 0, len(view)), bytes=len(view), layers=layers)
        entries: dict[str, TensorEntry] = {}
        end = 0
        for key, (dtype, shape, first, last) in sorted(header.items(), key=lambda item: item[1][2:]):
            if first != end or not first <= last <= len(view) - start:
                raise Refused(f"{name}: tensor {key:.80} does not follow the one before it")
            end = last
            entry = {
                "file": name,
                "sha256": _hashed(data, view, start + first, start + last),
                "dtype": dtype,
                "shape": shape,
                "offset": start + first,
                "bytes": last - first,
            }
            try:
                entries[_KEY.validate_python(key)] = TensorEntry.read(entry, f"{name}: tensor {key:.80}")
            except ValidationError:
                raise Refused(f"{name}: {printable(key[:80])!r} is no name of a tensor") from None
            except UserError as error:
                raise Refused(str(error)) from None
        if start + end != len(view):
            raise Refused(f"{name}: {len(view)} bytes, but its tensors end at {start + end}")
        return file, entries
    finally:
        view.release()


def _hashed(data: Bytes, view: memoryview, first: int, last: int) -> str:
    """Return the SHA-256 of a run of bytes; pages of a mapped file that were read count as this process's no more."""
    digest = sha256()
    for begin in range(first, last, _PIECE_BYTES):
        end = min(begin + _PIECE_BYTES, last)
        digest.update(view[begin:end])
        if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            page = begin - begin % mmap.PAGESIZE
            data.madvise(mmap.MADV_DONTNEED, page, end - page)
    return digest.hexdigest()


def digest_weights(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 over the hashes of weights in order of name: equal exactly where the weights are."""
    return sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()


def torch_dtype(dtype: DType) -> "torch.dtype":
    """Return the element type of this name."""
    import torch

    found: torch.dtype = getattr(torch, _TORCH[dtype])
    return found


def decode_tensor(entry: TensorEntry, data: Bytes) -> "torch.Tensor":
    """Return the tensor that `entry` describes, from its bytes, in memory of its own.

    Raises:
        Refused: the bytes have another length or another hash.
    """
    import torch

    if len(data) != entry.bytes:
        raise Refused(f"a tensor of {entry.file}: {len(data)} bytes, not {entry.bytes}")
    if sha256(data).hexdigest() != entry.sha256:
        raise Refused(f"a tensor of {entry.file} at byte {entry.offset}: its bytes have another hash")
    dtype = torch_dtype(entry.dtype)
    if not entry.bytes:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(entry.shape)


def _header(name: str, view: memoryview) -> tuple[int, dict[str, tuple[str, list[int], int, int]]]:
    """Return the offset of the tensors' bytes, and for each key: dtype, shape, first and last byte from there.

    The format: https://github.com/huggingface/safetensors#format.
    """
    size = int.from_bytes(view[:8], "little")
    if len(view) < 8 or size > min(HEADER_LIMIT, len(view) - 8):
        raise Refused(f"{name} is not a safetensors file: its header is cut off or too large")
    try:
        values = json.loads(bytes(view[8 : 8 + size]), object_pairs_hook=_unique)
        values.pop("__metadata__", None)
        header = {}
        for key, value in values.items():
            first, last = value["data_offsets"]
            if not (isinstance(first, int) and isinstance(last, int)):
                raise TypeError("offsets are integers")
            header[key] = (value["dtype"], value["shape"], first, last)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(f"{name} is not a safetensors file: {error!r:.100}") from None
    return 8 + size, header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key that is there twice")
    return values


def tensor_bytes(tensor: "torch.Tensor") -> Any:
    """Return the tensor's bytes in row-major order, as a buffer that shares its memory where it can."""
    import torch

    # NumPy has no bfloat16: bytes are all that is wanted of it.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
