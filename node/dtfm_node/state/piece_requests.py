"""Board of the pieces of a fetch: which are to be asked for, by whom; and who has given false bytes."""

import asyncio
import contextlib
import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from dtfm_node.state.source_pace import SourcePace
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.transfers import WantPiece
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import Bytes

Take = Callable[[str, TensorEntry, Bytes], Awaitable[None]]
"""Takes a tensor that is whole: its key, its description and its bytes."""

OVERTAKEN = 2.0
"""Multiple of the seconds that a source takes for a piece, from which it is asked for one that another source owes."""
OVERTAKEN_SECONDS = 1.0
"""Seconds after which another source would give it, at least: what is asked for twice takes room on links."""
LOOK_SECONDS = 0.1
"""Seconds between two looks of a source that has nothing to do at what others owe."""


@dataclass
class _Tensor:
    """Tensor that is being put together from pieces."""

    entry: TensorEntry
    data: bytearray
    left: int
    """Number of pieces that are not here yet."""
    givers: dict[tuple[int, int], str] = field(default_factory=dict)
    """Source of each piece, by the piece's first byte and its end."""
    before: "_Tensor | None" = None
    """The last attempt, which several sources gave, and one of them falsely."""

    def lacks(self, piece: WantPiece) -> bool:
        """Whether a piece is yet to come."""
        return (piece.offset, piece.offset + piece.size) not in self.givers

    def put(self, piece: WantPiece, data: Bytes, peer: str) -> None:
        """Take the bytes of a piece from a source."""
        end = piece.offset + piece.size
        self.data[piece.offset : end] = data
        self.givers[piece.offset, end] = peer
        self.left -= 1

    @property
    def is_right(self) -> bool:
        """Whether all its bytes together have the hash that its sources gave."""
        return hashlib.sha256(self.data).hexdigest() == self.entry.sha256

    def liars(self) -> Iterator[str]:
        """Yield who gave other bytes in the attempt before than this one has, which is right."""
        if self.before is not None:
            for (first, end), giver in self.before.givers.items():
                if self.before.data[first:end] != self.data[first:end]:
                    yield giver


class PieceRequests:
    """Board of the pieces of a state's tensors, shared by those who pull from the sources.

    Where all pieces are asked for, a source with nothing left to do is asked for what another one owes and would give
    much later: a slow source holds up nobody, and whoever is first has given the piece.

    False bytes cost their tensor a second attempt. Where one source gave all of it, that one is named and left out;
    where several did, the second attempt is one source's alone, and what comes out right shows who has lied before.
    """

    def __init__(self, mark: Mark, piece_bytes: int) -> None:
        self._mark, self._piece_bytes = mark, piece_bytes
        self._entries: Mapping[str, TensorEntry] = {}
        self._pieces: deque[WantPiece] = deque()
        self._under_way: dict[str, _Tensor] = {}
        self._only: dict[str, str] = {}
        """The one source that is asked for a tensor of which several gave false bytes together, by key."""
        self._changed = asyncio.Condition()
        self.paces: dict[str, SourcePace] = defaultdict(SourcePace)
        """Paces of the sources, by peer id."""
        self.finished = asyncio.Event()
        """Set once all tensors were taken."""
        self.done: set[str] = set()
        """Keys of the tensors that were taken."""
        self.false: dict[str, str] = {}
        """Sources that lie, and what each did in a line, by peer id."""

    def name(self, peer: str, why: str) -> None:
        """Leave a source out of all that is left, because it lies."""
        if peer not in self.false:
            log.warning("%s: it is left out", why)
            self.false[peer] = why

    def post(self, entries: Mapping[str, TensorEntry]) -> None:
        """Put up all pieces of these tensors, by key."""
        self._entries = entries
        for key in sorted(entries):
            self._pieces.extend(self._cut_up(key))
        if not entries:
            self.finished.set()

    def take(self, peer: str, keys: Collection[str], now: float) -> WantPiece | None:
        """Take the next piece for a source that can give `keys`, at time `now`; None if there is none for it."""
        for _ in range(len(self._pieces)):
            piece = self._pieces.popleft()
            if not self._lacks(piece):
                continue
            if self._is_for(peer, piece.key, keys):
                if piece.key not in self._under_way:
                    self._under_way[piece.key] = self._attempt(piece.key)
                return piece
            self._pieces.append(piece)
        return self._overdue(peer, keys, now)

    def _overdue(self, peer: str, keys: Collection[str], now: float) -> WantPiece | None:
        """Return the piece that another source owes alone, and would give last, if `peer` gives it much earlier."""
        owing = Counter(piece for pace in self.paces.values() for piece in pace.owed)
        own, latest, found = self.paces[peer], OVERTAKEN_SECONDS, None
        for other in self.paces.keys() - {peer}:
            for piece, seconds in self.paces[other].outlook(now):
                is_slow = seconds > max(latest, OVERTAKEN * own.seconds_for(piece.size))
                if is_slow and owing[piece] == 1 and self._lacks(piece) and self._is_for(peer, piece.key, keys):
                    latest, found = seconds, piece
        return found

    async def any_left(self, peer: str, keys: Collection[str], now: Callable[[], float]) -> bool:
        """Whether there is a piece for a source that can give `keys`; waits while others' are under way, as they may
        come back, or late. `now` tells the time."""
        async with self._changed:
            while not any(self._lacks(piece) and self._is_for(peer, piece.key, keys) for piece in self._pieces):
                if peer in self.false or not any(key in keys for key in self._under_way):
                    return False
                if self._overdue(peer, keys, now()) is not None:
                    return True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), LOOK_SECONDS)
            return True

    async def leave(self, peer: str) -> None:
        """Put back the pieces that a source was asked for in vain; others take over all that was its own."""
        async with self._changed:
            owed = self.paces.pop(peer).owed
            others = {piece for pace in self.paces.values() for piece in pace.owed}
            self._pieces.extendleft(piece for piece in owed if piece not in others)
            self._only = {key: only for key, only in self._only.items() if only != peer}
            self._changed.notify_all()

    async def put(self, peer: str, piece: WantPiece, data: Bytes, take: Take) -> bool:
        """Take the bytes of a piece from a source, unless another one was quicker: whether they were of use. `take`
        gets the tensor that is whole with them."""
        tensor = self._under_way.get(piece.key)
        if tensor is None or not tensor.lacks(piece) or self._only.get(piece.key, peer) != peer:
            return False
        tensor.put(piece, data, peer)
        if tensor.left:
            return True
        if not tensor.is_right:
            await self._again(peer, piece.key, tensor)
            return True
        for liar in tensor.liars():
            self._name_giver(liar, piece.key)
        await take(piece.key, tensor.entry, tensor.data)
        async with self._changed:
            del self._under_way[piece.key]
            self._only.pop(piece.key, None)
            self.done.add(piece.key)
            if len(self.done) == len(self._entries):
                self.finished.set()
            self._changed.notify_all()
        return True

    async def _again(self, peer: str, key: str, tensor: _Tensor) -> None:
        """Put a tensor with false bytes up again."""
        is_alone = set(tensor.givers.values()) == {peer}
        async with self._changed:
            if is_alone:
                self._name_giver(peer, key)
                self._only.pop(key, None)
            else:
                self._only[key] = peer
            before, tensor.before = tensor.before, None  # no more than one attempt is remembered
            self._under_way[key] = self._attempt(key, before if is_alone else tensor)
            self._pieces.extend(self._cut_up(key))
            self._changed.notify_all()

    def _name_giver(self, peer: str, key: str) -> None:
        self.name(peer, f"{key} of {self._mark} from {short(peer)} has another hash than its sources gave")

    def _is_for(self, peer: str, key: str, keys: Collection[str]) -> bool:
        return key in keys and self._only.get(key, peer) == peer

    def _lacks(self, piece: WantPiece) -> bool:
        """Whether a piece is yet to come."""
        tensor = self._under_way.get(piece.key)
        return piece.key not in self.done if tensor is None else tensor.lacks(piece)

    def _attempt(self, key: str, before: _Tensor | None = None) -> _Tensor:
        entry = self._entries[key]
        return _Tensor(entry, bytearray(entry.bytes), -(-entry.bytes // self._piece_bytes), before=before)

    def _cut_up(self, key: str) -> Iterator[WantPiece]:
        size = self._entries[key].bytes
        for offset in range(0, size, self._piece_bytes):
            yield WantPiece(key=key, offset=offset, size=min(self._piece_bytes, size - offset))
