"""Bulk transfers over the data plane: token shards by hash, state by parameter name, checkpoint files to be kept."""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity import short
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.planes.data import Bytes, DataPlane, Stream, read_message, write_message
from dtfm_protocol.resolved import Sha256
from dtfm_protocol.schema import Schema

SHARDS = "shards"
STATE = "state"
CHECKPOINT = "checkpoint"

SHARD_LIMIT = 64 << 20
"""Bytes of the largest token shard."""
TENSOR_LIMIT = 16 << 30
HAND_IN_LIMIT = 16 << 20
"""Bytes of the largest `HandIn` message, its rows included."""
_PIECE = 1 << 20
Count = Annotated[int, Field(ge=0)]


class WantShard(Schema):
    """Asks for a token shard."""

    sha256: Sha256


class WantState(Schema):
    """Asks for tensors of a checkpoint, one after the other."""

    step: Count
    keys: tuple[Annotated[str, Field(max_length=512)], ...]


class Found(Schema):
    """Answers a request: `size` bytes follow, or there is nothing."""

    size: Count | None


class FoundTensor(Schema):
    """Answers for one tensor: its bytes follow, or there is none."""

    entry: TensorEntry | None


class HandIn(Schema):
    """A stage's share of a checkpoint: every replica's digest, and from the stage's first one the file."""

    step: Count
    plan_version: Count
    stage: Count
    digest: Sha256
    """Over the replica's weights; those of a stage must be equal."""
    eval_loss: float | None
    size: Count
    """Bytes of the safetensors file that follow; 0 from the other replicas."""
    sha256: Sha256 | None
    rows: tuple[StepMetrics, ...] = ()
    """Metrics that the keeper may lack, so that a checkpoint is never ahead of the history that leads to it."""


class Receipt(Schema):
    """Whether the share was taken; for a share with a file, once before the file is sent, and once after it."""

    taken: bool
    text: Annotated[str, Field(max_length=500)]


async def send_file(stream: Stream, data: Bytes | Path, turn: Callable[[], Awaitable[None]] | None = None) -> None:
    """Write bytes, or a file, in pieces, so that other streams of the peer get their turn.

    Args:
        turn: awaited before each piece.
    """
    for piece in _pieces(data):
        if turn is not None:
            await turn()
        await stream.write(piece)


def _pieces(data: Bytes | Path) -> Iterator[Bytes]:
    if isinstance(data, Path):
        with data.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    else:
        view = memoryview(data)
        for offset in range(0, len(view), _PIECE):
            yield view[offset : offset + _PIECE]


async def fetch_shard(plane: DataPlane, peer: str, sha256: str) -> bytes | None:
    """A token shard from `peer`, verified; None if the peer has none.

    Raises:
        Refused: what came has another hash, or is too large.
        ConnectionError: the peer is gone.
    """
    stream = await plane.open(peer, SHARDS)
    try:
        await write_message(stream, WantShard(sha256=sha256))
        found = await read_message(stream, Found)
        if found.size is None:
            return None
        if found.size > SHARD_LIMIT:
            raise Refused(f"{short(peer)} offers a shard of {found.size} bytes")
        data = bytes(await stream.read(found.size))
    finally:
        await stream.close()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Refused(f"{short(peer)} sent a shard with another hash")
    return data


async def serve_shards(stream: Stream, find: Callable[[str], bytes | None]) -> None:
    """Answer one `fetch_shard`."""
    data = find((await read_message(stream, WantShard)).sha256)
    await write_message(stream, Found(size=None if data is None else len(data)))
    if data is not None:
        await send_file(stream, data)


async def fetch_state(
    plane: DataPlane,
    peer: str,
    step: int,
    keys: tuple[str, ...],
    take: Callable[[str, TensorEntry, Bytes], Awaitable[None]],
) -> None:
    """Read the tensors `keys` of the checkpoint of `step` from `peer`; `take` gets each as it comes and checks it.

    Raises:
        Refused: one is missing or too large.
        ConnectionError: the peer is gone.
    """
    stream = await plane.open(peer, STATE)
    try:
        await write_message(stream, WantState(step=step, keys=keys))
        for key in keys:
            entry = (await read_message(stream, FoundTensor)).entry
            if entry is None:
                raise Refused(f"{short(peer)} has no {key} of step {step}")
            if entry.bytes > TENSOR_LIMIT:
                raise Refused(f"{short(peer)} offers {entry.bytes} bytes for {key}")
            await take(key, entry, await stream.read(entry.bytes))
    finally:
        await stream.close()


async def serve_state(stream: Stream, find: Callable[[int, str], tuple[TensorEntry, Bytes] | None]) -> None:
    """Answer one `fetch_state`."""
    wanted = await read_message(stream, WantState)
    for key in wanted.keys:
        found = find(wanted.step, key)
        await write_message(stream, FoundTensor(entry=None if found is None else found[0]))
        if found is None:
            return
        await send_file(stream, found[1])


async def hand_in(
    plane: DataPlane,
    peer: str,
    share: HandIn,
    data: Bytes | Path,
    turn: Callable[[], Awaitable[None]] | None = None,
) -> Receipt:
    """Give `peer` a share of a checkpoint to keep.

    Args:
        turn: awaited before each piece that is sent.

    Raises:
        ConnectionError: the peer is gone.
        Refused: its answer is none.
    """
    stream = await plane.open(peer, CHECKPOINT)
    try:
        await write_message(stream, share)
        receipt = await read_message(stream, Receipt)  # of the share; the file is sent only if it is wanted
        if receipt.taken and share.size:
            await send_file(stream, data, turn)
            receipt = await read_message(stream, Receipt)
        return receipt
    finally:
        await stream.close()
