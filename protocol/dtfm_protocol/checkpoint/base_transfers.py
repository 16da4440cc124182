"""Transfers of pieces of the weights that a job begins with, over the data plane: by hash, some bytes at a time."""

import asyncio
from typing import Annotated

from pydantic import Field

from dtfm_protocol.bounds import Count
from dtfm_protocol.checkpoint.base_pieces import PieceFolder, ReceivedPiece
from dtfm_protocol.checkpoint.transfers import PIECE_LIMIT, TransferReply
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.resolved_job import BasePiece, Sha256
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.stream import DataPlane, Stream, read_message, write_message

BASE = "base"
"""Data-plane service that gives pieces of the weights away that a job begins with."""
_WRITTEN = 1 << 17
"""Bytes that are sent between two turns, as of other files."""


class WantBase(Message):
    """A request for some bytes of a piece; others may follow on the stream. The answer is a `TransferReply`."""

    sha256: Sha256
    offset: Count
    size: Annotated[int, Field(gt=0, le=PIECE_LIMIT)]


async def serve_base(stream: Stream, pieces: PieceFolder) -> None:
    """Answer a peer that fetches a piece, until it ends the stream, or asks for what is not here."""
    while True:
        want = await read_message(stream, WantBase)
        data = pieces.read(want.sha256, want.offset, want.size)
        await write_message(stream, TransferReply(size=None if data is None else len(data)))
        if data is None:
            return
        view = memoryview(data)
        for first in range(0, len(view), _WRITTEN):
            await stream.write(view[first : first + _WRITTEN])


async def fetch_base(
    plane: DataPlane, peer: str, piece: BasePiece, into: ReceivedPiece, seconds: float = TIMEOUTS.piece
) -> bool:
    """Fetch from `peer` what of a piece has not come yet; False: it has it not, or no more of it.

    Args:
        seconds: for it to send what it is asked for at a time.

    Raises:
        Refused: it answers with another size than it was asked for.
        ConnectionError: it is gone; what has come stays.
        TimeoutError: it takes longer than that; what has come stays.
    """
    stream = await plane.open(peer, BASE)
    try:
        while (left := piece.bytes - into.bytes) > 0:
            size = min(left, PIECE_LIMIT)
            await write_message(stream, WantBase(sha256=piece.sha256, offset=into.bytes, size=size))
            async with asyncio.timeout(seconds):
                found = await read_message(stream, TransferReply)
                if found.size is None:
                    return False
                if found.size != size:
                    raise Refused(f"{short(peer)} offers {found.size} bytes of a piece of the weights, not {size}")
                for first in range(0, size, _WRITTEN):
                    into.write(await stream.read(min(_WRITTEN, size - first)))
    finally:
        await stream.close()
    return True
