"""What is large goes over a stream in pieces, and comes out of it as it went in."""

import asyncio
from pathlib import Path

import pytest

from dtfm_protocol.checkpoint.transfers import receive_file, send_file
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.wire.stream import Bytes, StreamClosed

PIECE = 1 << 17


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, []), (1, [1]), (PIECE, [PIECE]), (PIECE + 1, [PIECE, 1]), (5 * PIECE // 2, [PIECE, PIECE, PIECE // 2])],
)
@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_file_comes_in_the_pieces_in_which_it_was_sent(
    tmp_path: Path, size: int, pieces: list[int], on_disk: bool
) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    path = tmp_path / "file"
    path.write_bytes(data)
    here, there = MemoryStream.pair("a", "b")
    turns, came = list[None](), list[Bytes]()

    async def turn() -> None:
        turns.append(None)

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(send_file(here, path if on_disk else data, turn))
        tasks.create_task(receive_file(there, size, came.append))
    assert b"".join(came) == data
    assert [len(piece) for piece in came] == pieces
    assert len(turns) == len(pieces)


async def test_of_a_file_that_breaks_off_what_came_was_written_and_that_is_said() -> None:
    here, there = MemoryStream.pair("a", "b")
    came = list[Bytes]()
    await send_file(here, bytes(PIECE + 10))
    await here.close()
    with pytest.raises(StreamClosed):
        await receive_file(there, 2 * PIECE, came.append)
    assert [len(piece) for piece in came] == [PIECE]
