"""Fetch of a state from all peers that hold it at once, piece by piece; nothing is believed but hashes that they agree
on."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.transfers import (
    CATALOGUE_LIMIT,
    PIECE_LIMIT,
    STATE,
    Catalogue,
    TransferReply,
    WantCatalogue,
    WantPiece,
)
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import Bytes, DataPlane, Stream, read_message, write_message

Take = Callable[[str, TensorEntry, Bytes], Awaitable[None]]
AHEAD_BYTES = PIECE_LIMIT
"""Bytes that one source is asked for before it has answered."""


class Lacking(ConnectionError):
    """Error: no source that answers has all that is wanted."""


@dataclass
class _Tensor:
    """Tensor that is being put together from pieces."""

    entry: TensorEntry
    data: bytearray
    left: int
    """Number of pieces that are not here yet."""
    givers: set[str] = field(default_factory=set)


@dataclass
class Fetched:
    """Amount of a fetch: bytes received, and peer ids of those that gave any."""

    bytes: int = 0
    sources: set[str] = field(default_factory=set)


class Fetch:
    """Fetch of the tensors of `shapes`, by key, of the state `mark` from `sources`.

    Args:
        piece_bytes: what is asked for at a time, at most `PIECE_LIMIT`.
        catalogue_seconds: see `Timeouts.catalogue`.
        piece_seconds: for a source to send a piece.
    """

    def __init__(
        self,
        plane: DataPlane,
        mark: Mark,
        shapes: Mapping[str, tuple[int, ...]],
        sources: Collection[str],
        *,
        piece_bytes: int = PIECE_LIMIT,
        catalogue_seconds: float = TIMEOUTS.catalogue,
        piece_seconds: float = TIMEOUTS.piece,
    ) -> None:
        self._plane, self._mark, self._sources = plane, mark, sources
        self._shapes, self._wanted = shapes, set(shapes)
        self._piece_bytes = piece_bytes
        self._catalogue_seconds, self._piece_seconds = catalogue_seconds, piece_seconds
        self._agreed: dict[str, TensorEntry] = {}
        self._pieces: deque[WantPiece] = deque()
        self._under_way: dict[str, _Tensor] = {}
        self._done: set[str] = set()
        self._changed = asyncio.Condition()
        self.result = Fetched()

    async def run(self, take: Take) -> Fetched:
        """Fetch all tensors; `take` gets each once its bytes have the hash that its sources gave.

        Sources that vanish leave their pieces to the others; what was taken before stays taken.

        Raises:
            Lacking: no source can give what is left.
            Refused: sources differ in what a tensor of this state is.
        """
        streams: dict[str, tuple[Stream, frozenset[str]]] = {}
        try:
            answers = await asyncio.gather(*(self._ask(peer) for peer in self._sources))
            for answer in answers:
                if answer is not None:
                    peer, stream, tensors = answer
                    streams[peer] = (stream, frozenset(tensors))
                    self._compare(peer, tensors)
            self._cut()
            await self._pull_all(streams, take)
        finally:
            for stream, _ in streams.values():
                await stream.close()
        self._complain(self._wanted - self._done)
        return self.result

    async def _pull_all(self, streams: Mapping[str, tuple[Stream, frozenset[str]]], take: Take) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for peer, (stream, keys) in streams.items():
                    tasks.create_task(self._pull(peer, stream, keys, take))
        except BaseExceptionGroup as group:
            refused, others = group.split(Refused)
            if refused is None or others is not None:
                raise
            raise Refused(str(refused.exceptions[0])) from None

    async def _ask(self, peer: str) -> tuple[str, Stream, dict[str, TensorEntry]] | None:
        """Return a source's peer id, stream and catalogue of wanted tensors; None if it does not answer."""
        stream: Stream | None = None
        try:
            async with asyncio.timeout(self._catalogue_seconds):
                stream = await self._plane.open(peer, STATE)
                await write_message(stream, WantCatalogue(mark=self._mark))
                tensors = (await read_message(stream, Catalogue, CATALOGUE_LIMIT)).tensors
        except (ConnectionError, Refused, TimeoutError) as error:
            log.info("%s gives nothing of %s: %s", short(peer), self._mark, str(error) or "no answer")
            if stream is not None:
                await stream.close()
            return None
        return peer, stream, {key: entry for key, entry in tensors.items() if key in self._wanted}

    def _compare(self, peer: str, tensors: dict[str, TensorEntry]) -> None:
        """Compare a source's tensors with those of the others.

        Raises:
            Refused: a tensor has another shape than is wanted, or differs from that of another source.
        """
        for key, entry in tensors.items():
            if entry.shape != self._shapes[key]:  # looked at before memory is taken
                raise Refused(f"{short(peer)} offers {key} of shape {entry.shape}, not {self._shapes[key]}")
            known = self._agreed.setdefault(key, entry)
            if (known.sha256, known.dtype, known.shape) != (entry.sha256, entry.dtype, entry.shape):
                raise Refused(f"{short(peer)} has another {key} of {self._mark} than the other sources")

    def _cut(self) -> None:
        self._complain(self._wanted - self._agreed.keys())
        for key in sorted(self._wanted):
            size = self._agreed[key].bytes
            for offset in range(0, size, self._piece_bytes):
                self._pieces.append(WantPiece(key=key, offset=offset, size=min(self._piece_bytes, size - offset)))

    def _complain(self, lacking: Collection[str]) -> None:
        if lacking:
            raise Lacking(f"nobody who answers has {min(lacking)} of {self._mark} ({len(lacking)} tensors are lacking)")

    async def _pull(self, peer: str, stream: Stream, keys: frozenset[str], take: Take) -> None:
        """Take one piece after the other from a source, until none is left that it could give.

        Small pieces are asked for ahead of their turn: a state has hundreds of them, and each would cost a round trip.
        How many grows with those that came, twofold a round trip: one who gives nothing holds up a single one.
        """
        asked: deque[WantPiece] = deque()
        ahead = 1
        while asked or await self._any_left(keys):
            try:
                async with asyncio.timeout(self._piece_seconds):
                    while len(asked) < ahead and sum(piece.size for piece in asked) < AHEAD_BYTES:
                        piece = self._take(keys)
                        if piece is None:
                            break
                        asked.append(piece)
                        await write_message(stream, piece)
                    if not asked:
                        continue  # another source was quicker
                    found = await read_message(stream, TransferReply)
                    if found.size != asked[0].size:
                        raise Refused("it gives no more of it")
                    data = await stream.read(asked[0].size)
            except (ConnectionError, Refused, TimeoutError) as error:
                log.info("%s gives no more of %s: %s", short(peer), self._mark, str(error) or "no answer")
                await self._put_back(asked)
                return
            piece = asked.popleft()
            ahead += 1
            self.result.bytes += piece.size
            self.result.sources.add(peer)
            await self._put(peer, piece, data, take)

    def _take(self, keys: frozenset[str]) -> WantPiece | None:
        """Take the next piece of one of `keys` off the list; None if none is left."""
        for _ in range(len(self._pieces)):
            if self._pieces[0].key in keys:
                return self._start(self._pieces.popleft())
            self._pieces.rotate(-1)
        return None

    async def _any_left(self, keys: frozenset[str]) -> bool:
        """Whether a piece of `keys` is to be asked for; waits while others' are under way, as they may come back."""
        async with self._changed:
            while not any(piece.key in keys for piece in self._pieces):
                if not keys & self._under_way.keys():
                    return False
                await self._changed.wait()
            return True

    def _start(self, piece: WantPiece) -> WantPiece:
        entry = self._agreed[piece.key]
        if piece.key not in self._under_way:
            count = -(-entry.bytes // self._piece_bytes)
            self._under_way[piece.key] = _Tensor(entry, bytearray(entry.bytes), count)
        return piece

    async def _put_back(self, pieces: Collection[WantPiece]) -> None:
        async with self._changed:
            self._pieces.extendleft(pieces)
            self._changed.notify_all()

    async def _put(self, peer: str, piece: WantPiece, data: Bytes, take: Take) -> None:
        tensor = self._under_way[piece.key]
        tensor.data[piece.offset : piece.offset + len(data)] = data
        tensor.left -= 1
        tensor.givers.add(peer)
        if tensor.left:
            return
        if hashlib.sha256(tensor.data).hexdigest() != tensor.entry.sha256:
            givers = ", ".join(map(short, sorted({*tensor.givers, peer})))
            raise Refused(f"{piece.key} of {self._mark} from {givers} has another hash than its sources gave")
        await take(piece.key, tensor.entry, tensor.data)
        async with self._changed:
            del self._under_way[piece.key]
            self._done.add(piece.key)
            self._changed.notify_all()
