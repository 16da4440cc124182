"""Pieces of a state are asked of the source that gives them first."""

import pytest
import torch

from dtfm_node.state.piece_requests import PieceRequests
from dtfm_node.state.source_pace import AHEAD_BYTES, AHEAD_SECONDS, SourcePace
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import tensor_entry
from dtfm_protocol.checkpoint.transfers import WantPiece
from dtfm_protocol.plan.mark import Mark
from dtfm_protocol.wire.stream import Bytes

PIECE = 100
KEYS = ("weight/a",)


class Board:
    """A board with one tensor of ten pieces, and a clock."""

    def __init__(self) -> None:
        entry, data = tensor_entry("live.safetensors", torch.arange(10 * PIECE // 4, dtype=torch.float32))
        self.data, self.now = bytes(data), 0.0
        self.pieces = PieceRequests(Mark(step=7, plan=2), PIECE)
        self.pieces.post({KEYS[0]: entry})
        self.taken: list[bytes] = []

    def ask(self, peer: str) -> WantPiece | None:
        """Have a source asked for the next piece."""
        piece = self.pieces.take(peer, KEYS, self.now)
        if piece is not None:
            self.pieces.paces[peer].asked(piece, self.now)
        return piece

    async def give(self, peer: str, seconds: float, *, false: bool = False) -> None:
        """Let some seconds pass, and a source give the piece that it owes first."""

        async def take(key: str, entry: TensorEntry, data: Bytes) -> None:
            self.taken.append(bytes(data))

        self.now += seconds
        piece = self.pieces.paces[peer].gave(self.now)
        data = bytes(piece.size) if false else self.data[piece.offset : piece.offset + piece.size]
        await self.pieces.put(peer, piece, data, take)


async def all_but_the_last(board: Board, seconds: float) -> WantPiece:
    """Have "slow" asked for a piece, which it owes from now on, and "fast" give all others; return that piece."""
    owed = board.ask("slow")
    assert owed is not None
    for _ in range(9):
        assert board.ask("fast") is not None
        await board.give("fast", seconds)
    return owed


async def test_what_a_source_owes_for_long_is_asked_of_a_faster_one_and_what_it_gives_later_counts_for_nothing() -> (
    None
):
    board = Board()
    owed = await all_but_the_last(board, 1.0)
    assert board.ask("fast") == owed
    await board.give("fast", 1.0)
    assert board.taken == [board.data]
    assert board.pieces.finished.is_set()
    await board.give("slow", 5.0, false=True)
    assert board.taken == [board.data]
    assert not board.pieces.false


async def test_what_comes_soon_enough_is_asked_for_once() -> None:
    board = Board()
    first, second = board.ask("one"), board.ask("other")
    for _ in range(4):
        for peer in ("one", "other"):
            await board.give(peer, 0.5)
            assert board.ask(peer) is not None
    assert first != second
    await board.give("one", 0.5)
    assert board.ask("one") is None  # the other one is as fast, and gives it as soon
    board.now += 30.0
    assert board.ask("one") is not None  # it has stopped


async def test_a_third_source_is_not_asked_for_what_two_owe() -> None:
    board = Board()
    await all_but_the_last(board, 1.0)
    assert board.ask("fast") is not None
    board.now += 100.0
    board.pieces.paces["third"].asked(WantPiece(key=KEYS[0], offset=0, size=PIECE), board.now)
    board.pieces.paces["third"].gave(board.now + 0.1)
    assert board.ask("third") is None


async def test_who_has_given_nothing_yet_overtakes_nobody() -> None:
    board = Board()
    for _ in range(10):
        assert board.ask("slow") is not None
    board.now += 100.0
    assert board.ask("new") is None


async def test_a_piece_that_others_owe_too_does_not_come_back_with_who_leaves() -> None:
    board = Board()
    owed = await all_but_the_last(board, 1.0)
    assert board.ask("fast") == owed
    await board.pieces.leave("fast")
    assert board.ask("new") is None
    await board.pieces.leave("slow")
    assert board.ask("new") == owed


@pytest.mark.parametrize(("rate", "pieces"), [(AHEAD_BYTES // 4, 2), (10 * AHEAD_BYTES, 5)])
def test_a_source_is_asked_ahead_for_what_it_gives_in_a_second_and_no_more_than_the_limit(
    rate: float, pieces: int
) -> None:
    pace, size = SourcePace(), AHEAD_BYTES // 5 + 1
    for number in range(12):
        pace.asked(WantPiece(key="weight/a", offset=number * size, size=size), number * size / rate)
        pace.gave((number + 1) * size / rate)
    while pace.takes_more():
        pace.asked(WantPiece(key="weight/a", offset=0, size=size), 100.0)
    assert len(pace.owed) == pieces
    assert (len(pace.owed) - 1) * size < AHEAD_SECONDS * rate


def test_how_much_is_asked_ahead_grows_with_what_came() -> None:
    pace, piece = SourcePace(), WantPiece(key="weight/a", offset=0, size=1)
    for owed in (1, 2, 4, 8):
        while pace.takes_more():
            pace.asked(piece, 0.0)
        assert len(pace.owed) == owed
        for _ in range(owed):
            pace.gave(1e-6)
