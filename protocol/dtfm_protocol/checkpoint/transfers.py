"""Bulk transfers over the data plane: token shards by hash, state by parameter name, checkpoint files to be kept."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from dtfm_protocol.bounds import MOST_ROWS, MOST_TENSORS, Count, Index, Loss, Norm, Step, Text, Version
from dtfm_protocol.checkpoint.manifest import Key, TensorEntry
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.resolved_job import Sha256
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.state_vote import Votes
from dtfm_protocol.schema import Message, Schema
from dtfm_protocol.wire.stream import Bytes, DataPlane, Stream, read_message, write_message

SHARDS = "shards"
"""Data-plane service that gives token shards away."""
STATE = "state"
"""Data-plane service that gives tensors of the model's states away."""
CHECKPOINT = "checkpoint"
"""Data-plane service of the coordinator that takes stages' shares of a checkpoint."""
SHADOW = "shadow"
"""Data-plane service that takes copies of other peers' snapshots."""

SHARD_LIMIT = 64 << 20
"""Bytes of the largest token shard."""
PIECE_LIMIT = 4 << 20
"""Bytes of a tensor that one request asks for: several sources share a large tensor, and none holds up a stream for
long."""
CATALOGUE_LIMIT = 64 << 20
"""Bytes of the largest `Catalogue` message."""
HAND_IN_LIMIT = 16 << 20
"""Bytes of the largest `HandIn` message, its rows of metrics included."""
_PIECE = 1 << 17
"""Bytes of a file between two turns: what a step waits for is behind one of them at most, a quarter of a second at 4
Mbit/s."""


class WantShard(Message):
    """A request for a token shard."""

    sha256: Sha256


ParameterName = Annotated[str, Field(pattern=r"^\S+$", max_length=480)]
"""Name of a parameter in the whole model."""


class TransferReply(Message):
    """The answer to a request: `size` bytes follow; None: there is no such thing here."""

    size: Count | None


class WantCatalogue(Message):
    """A request for the list of a state's tensors that a peer can give; requests for pieces follow on the stream.

    Where it names parameters, it asks to be given ahead of a plan what the peer trains: `Parcel`s follow.
    """

    mark: Mark
    """The name of the state; not looked at where parameters are named, for the state is another one after each step."""
    ahead: Annotated[tuple[ParameterName, ...], Field(max_length=MOST_TENSORS)] = ()
    """Names of the parameters that are to be given ahead; none: a catalogue is wanted."""


class Parcel(Message):
    """A parameter of the state in training, ahead of the plan that needs it; its bytes follow.

    Nothing of it is believed: it serves where the plan's sources have the same bytes.
    """

    name: ParameterName
    step: Step
    """The step after which its tensors are these, or to which its gradient leads."""
    grad_norm: Norm | None = None
    """The norm of the whole model's gradient in that step: what follows is the parameter's gradient in fp32, or nothing
    where the step has none. None: its tensors follow, in the order of the table of slots."""
    size: Count
    """Bytes that follow."""
    left: Count = 0
    """Number of parameters of those asked for that were not given yet, and of gradients that are due."""


class Catalogue(Schema):
    """The tensors of a state that a peer can give; none where it has nothing of it."""

    tensors: Annotated[dict[Key, TensorEntry], Field(max_length=MOST_TENSORS)]


class WantPiece(Message):
    """A request for bytes of one tensor of the catalogue."""

    key: Key
    offset: Count
    size: Annotated[int, Field(gt=0, le=PIECE_LIMIT)]


class StateSource(Protocol):
    """A peer's store of states, from which it gives tensors to others."""

    async def catalogue(self, mark: Mark) -> dict[str, TensorEntry]:
        """List the tensors of a state that are here, by key."""

    async def read(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        """Read `size` bytes of one of a state's tensors, from `offset`; None if the state is gone."""


GivenAhead = Callable[[Stream, tuple[str, ...]], Awaitable[None]]
"""Gives a peer, over its stream, parameters by name ahead of the plan that needs them."""


class Deposit(Schema):
    """An offer of a stage's snapshot to a peer that the plan has keep a copy."""

    plan_version: Version
    mark: Mark
    layers: LayerRange
    size: Count
    """Bytes of the safetensors file that follow."""
    sha256: Sha256
    votes: Votes = ()
    """The giver's vote on what the file holds is among them."""
    commit: SignedCommit | None = None
    """The commit that made the state final: without it nobody can go on from the copy while its plan is the newest."""


class HandIn(Schema):
    """A stage's share of a checkpoint: every replica's digest, and from the stage's first one the file."""

    step: Step
    plan_version: Version
    stage: Index
    digest: Sha256
    """Digest of the replica's weights (`digest_weights`); those of a stage must be equal."""
    eval_loss: Loss | None
    size: Count
    """Bytes of the safetensors file that follow; 0 from the other replicas."""
    sha256: Sha256 | None
    rows: Annotated[tuple[StepMetrics, ...], Field(max_length=MOST_ROWS)] = ()
    """Metrics that the coordinator may lack, so that a checkpoint is never ahead of the history that leads to it."""
    votes: Votes = ()
    """The replica's vote on its stage's part of the state is among them."""


class Receipt(Message):
    """The answer to an offer: whether it is taken.

    Where a file belongs to the offer there are two: one before the file is sent, and one after it.
    """

    taken: bool
    text: Text
    """Reason in one line, e.g. why the offer is not taken."""


async def send_file(stream: Stream, data: Bytes | Path, turn: Callable[[], Awaitable[None]] | None = None) -> None:
    """Write bytes, or a file, to a stream in pieces, so that other streams of the peer get their turn.

    Args:
        turn: a function that is called and awaited before each piece.
    """
    for piece in _pieces(data):
        if turn is not None:
            await turn()
        await stream.write(piece)


async def receive_file(stream: Stream, size: int, write: Callable[[Bytes], object]) -> None:
    """Read the `size` bytes of what `send_file` sends, and give each piece to `write` as it comes.

    Raises:
        StreamClosed: the stream ended before all of them came.
    """
    for offset in range(0, size, _PIECE):
        write(await stream.read(min(_PIECE, size - offset)))


def _pieces(data: Bytes | Path) -> Iterator[Bytes]:
    if isinstance(data, Path):
        with data.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    else:
        view = memoryview(data)
        for offset in range(0, len(view), _PIECE):
            yield view[offset : offset + _PIECE]


class ShardOffer:
    """A peer's offer of a token shard, which is to be taken or declined."""

    def __init__(self, stream: Stream, sha256: str, size: int) -> None:
        self._stream, self._sha256, self._size = stream, sha256, size
        self.peer = stream.peer

    async def take(self, piece_seconds: float) -> bytes:
        """Return the shard, once all of it is here.

        Args:
            piece_seconds: limit of each `PIECE_LIMIT` bytes.

        Raises:
            Refused: what came has another hash, or it does not come.
            ConnectionError: the peer is gone.
        """
        data = bytearray()
        try:
            while (left := self._size - len(data)) > 0:
                async with asyncio.timeout(piece_seconds):
                    data += await self._stream.read(min(left, PIECE_LIMIT))
        except TimeoutError:
            raise Refused(
                f"{short(self.peer)} offered a shard and sent too little of it for {piece_seconds:g} s"
            ) from None
        finally:
            await self._stream.close()
        if hashlib.sha256(data).hexdigest() != self._sha256:
            raise Refused(f"{short(self.peer)} sent a shard with another hash")
        return bytes(data)

    async def decline(self) -> None:
        """Have the peer send no more of it."""
        await self._stream.close()


async def ask_for_shard(plane: DataPlane, peer: str, sha256: str, size: int) -> ShardOffer | None:
    """Ask `peer` for a token shard of `size` bytes; None if it has none.

    Raises:
        Refused: what is offered has another size, or is larger than any shard.
        ConnectionError: the peer cannot be reached, or is gone.
    """
    stream = await plane.open(peer, SHARDS)
    offer = None
    try:
        await write_message(stream, WantShard(sha256=sha256))
        found = await read_message(stream, TransferReply)
        if found.size is not None and (found.size > SHARD_LIMIT or found.size != size):
            raise Refused(f"{short(peer)} offers a shard of {found.size} bytes, not {size}")
        offer = None if found.size is None else ShardOffer(stream, sha256, found.size)
    finally:
        if offer is None:
            await stream.close()
    return offer


async def serve_shards(stream: Stream, find: Callable[[str], bytes | None]) -> None:
    """Answer one `ask_for_shard` on a stream; `find` gives the shard of a SHA-256, or None."""
    data = find((await read_message(stream, WantShard)).sha256)
    await write_message(stream, TransferReply(size=None if data is None else len(data)))
    if data is not None:
        await send_file(stream, data)


async def serve_state(stream: Stream, states: "StateSource", ahead: "GivenAhead | None" = None) -> None:
    """Answer a peer that fetches a state: the catalogue, then pieces until it has what it wants.

    Args:
        ahead: answers one that wants to be given parameters ahead; None: nobody does.

    Raises:
        Refused: it is given nothing ahead.
    """
    wanted = await read_message(stream, WantCatalogue)
    if wanted.ahead:
        if ahead is None:
            raise Refused("a request for parts of a state in training, which is not due here")
        await ahead(stream, wanted.ahead)
        return
    catalogue = await states.catalogue(wanted.mark)
    await write_message(stream, Catalogue(tensors=catalogue))
    while catalogue:
        piece = await read_message(stream, WantPiece)
        entry = catalogue.get(piece.key)
        data = None
        if entry is not None and piece.offset + piece.size <= entry.bytes:
            data = await states.read(wanted.mark, piece.key, piece.offset, piece.size)
        await write_message(stream, TransferReply(size=None if data is None else len(data)))
        if data is None:
            return
        await stream.write(data)


async def hand_in(
    plane: DataPlane,
    peer: str,
    share: HandIn,
    data: Bytes | Path,
    turn: Callable[[], Awaitable[None]] | None = None,
) -> Receipt:
    """Give the coordinator a stage's share of a checkpoint to keep.

    Args:
        turn: a function that is called and awaited before each piece that is sent.

    Raises:
        ConnectionError: the peer is gone.
        Refused: what the peer answers is no receipt.
    """
    return await _give(plane, peer, CHECKPOINT, share, data if share.size else None, turn)


async def deposit(
    plane: DataPlane, peer: str, offer: Deposit, file: Path, turn: Callable[[], Awaitable[None]] | None = None
) -> Receipt:
    """Give `peer` a snapshot to keep a copy of.

    Args:
        turn: a function that is called and awaited before each piece that is sent.

    Raises:
        ConnectionError: the peer is gone.
        Refused: what the peer answers is no receipt.
    """
    return await _give(plane, peer, SHADOW, offer, file, turn)


async def _give(
    plane: DataPlane,
    peer: str,
    service: str,
    offer: HandIn | Deposit,
    data: Bytes | Path | None,
    turn: Callable[[], Awaitable[None]] | None,
) -> Receipt:
    """Offer `data` to a peer and send it if it is wanted: first the receipt of the offer, then that of the data."""
    stream = await plane.open(peer, service)
    try:
        await write_message(stream, offer)
        receipt = await read_message(stream, Receipt)
        if receipt.taken and data is not None:
            await send_file(stream, data, turn)
            receipt = await read_message(stream, Receipt)
        return receipt
    finally:
        await stream.close()
