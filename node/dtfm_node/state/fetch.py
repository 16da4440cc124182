"""Fetch of a state from all peers that hold it at once, piece by piece; nothing is believed but hashes that are
certified, or that they agree on."""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from dtfm_node.state.asked_sources import AskedSources
from dtfm_node.state.catalogue_proof import Catalogues, CertifiedPart, prove
from dtfm_node.state.piece_requests import PieceRequests, Take
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import tensor_entry
from dtfm_protocol.checkpoint.state_slots import StateTable
from dtfm_protocol.checkpoint.transfers import PIECE_LIMIT, TransferReply
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import Bytes, DataPlane, Stream, read_message, write_message

LATE_SECONDS = 3.0
"""Many round trips: sources hash what they have, which takes many of them about as long."""


class Lacking(ConnectionError):
    """Error: no source that answers has all that is wanted."""


@dataclass
class Fetched:
    """Amount of a fetch: bytes received, peer ids of those that gave any, and what those gave that lied, by peer id."""

    bytes: int = 0
    sources: set[str] = field(default_factory=set)
    false: dict[str, str] = field(default_factory=dict)

    def with_more(self, other: "Fetched") -> "Fetched":
        """Return both together."""
        return Fetched(self.bytes + other.bytes, self.sources | other.sources, self.false | other.false)


class Fetch:
    """Fetch of the tensors of `shapes`, by key, of the state `mark` from `sources`.

    Args:
        table: slots of the state.
        parts: what is certified of the state: there a source that offers anything else is named and left out.
        ahead: tensors that this node was given before, by key: those with the hash that sources offer are not asked
            for once more.
        piece_bytes: what is asked for at a time, at most `PIECE_LIMIT`.
        catalogue_seconds: see `Timeouts.catalogue`.
        late_seconds: for sources to answer once others have proven all of it.
        piece_seconds: for a source to send a piece.
    """

    def __init__(
        self,
        plane: DataPlane,
        mark: Mark,
        shapes: Mapping[str, tuple[int, ...]],
        sources: Collection[str],
        *,
        table: StateTable,
        parts: Collection[CertifiedPart] = (),
        ahead: Mapping[str, torch.Tensor] | None = None,
        piece_bytes: int = PIECE_LIMIT,
        catalogue_seconds: float = TIMEOUTS.catalogue,
        late_seconds: float = LATE_SECONDS,
        piece_seconds: float = TIMEOUTS.piece,
    ) -> None:
        self._plane, self._mark, self._sources = plane, mark, sources
        self._shapes, self._wanted, self._table, self._parts = shapes, set(shapes), table, parts
        self._catalogue_seconds, self._piece_seconds = catalogue_seconds, piece_seconds
        self._late_seconds = late_seconds
        self._ahead: Mapping[str, torch.Tensor] = {} if ahead is None else ahead
        self._agreed: dict[str, TensorEntry] = {}
        self._board = PieceRequests(mark, piece_bytes)
        self.result = Fetched(false=self._board.false)

    async def run(self, take: Take) -> Fetched:
        """Fetch all tensors; `take` gets each once its bytes have the hash that its sources gave.

        Sources that vanish leave their pieces to the others, and so do those that give false bytes, or offer what is
        not certified; what was taken before stays taken.

        Raises:
            Lacking: no source can give what is left.
            Refused: sources differ in what a tensor of this state is, and nothing certified tells who is right; or
                those that lie were the only ones.
        """
        asked = AskedSources(self._plane, self._mark, self._sources, self._catalogue_seconds)
        answered = asked.answered(lambda: self._are_proven(asked.catalogues), self._late_seconds)
        try:
            here, _ = await asyncio.gather(asyncio.to_thread(_described, self._ahead), answered)
            usable = self._compare(asked.catalogues)
            self._complain(self._wanted - self._agreed.keys())
            for key in [key for key, entry in self._agreed.items() if key in here and _is_same(entry, here[key][0])]:
                await take(key, self._agreed.pop(key), here[key][1])
                self._wanted.discard(key)
            self._board.post(self._agreed)
            await self._pull_all(usable, asked, take)
        finally:
            await asked.close()
        self._complain(self._wanted - self._board.done)
        return self.result

    async def _pull_all(self, usable: Mapping[str, frozenset[str]], asked: AskedSources, take: Take) -> None:
        """Pull from all sources that can be asked, be it that they answer late."""
        try:
            async with asyncio.TaskGroup() as tasks:

                def pull(peer: str, keys: frozenset[str]) -> asyncio.Task[None]:
                    return tasks.create_task(self._pull(peer, asked.streams[peer], keys, take))

                pulls = {peer: pull(peer, keys) for peer, keys in usable.items()}
                finished = tasks.create_task(self._board.finished.wait())
                while not finished.done() and (asked.asking or not all(one.done() for one in pulls.values())):
                    pending = {finished, *asked.asking, *(one for one in pulls.values() if not one.done())}
                    await asyncio.wait(pending, return_when=FIRST_COMPLETED)
                    if late := asked.taken() - pulls.keys():
                        usable = self._compare(asked.catalogues)
                        pulls |= {peer: pull(peer, usable[peer]) for peer in late & usable.keys()}
                for task in (finished, *pulls.values()):
                    task.cancel()  # what is still owed has come from others
        except BaseExceptionGroup as group:
            refused, others = group.split(Refused)
            if refused is None or others is not None:
                raise
            raise Refused(str(refused.exceptions[0])) from None

    def _are_proven(self, catalogues: Catalogues) -> bool:
        """Whether those that have answered offer all that is wanted as it is certified."""
        proof, offered = prove(catalogues, self._parts, self._table), set[str]()
        for peer, tensors in catalogues.items():
            if peer not in proof.false and not self._misshapen(peer, tensors, self._wanted):
                offered |= tensors.keys() & proof.hashes.keys()
        return self._wanted <= offered

    def _compare(self, catalogues: Catalogues) -> dict[str, frozenset[str]]:
        """Compare what the sources offer with what is certified, and else with each other; return the keys that each of
        them can be asked for.

        Raises:
            Refused: a tensor that is not certified has another shape than is wanted, or differs from that of another
                source.
        """
        proof = prove(catalogues, self._parts, self._table)
        for peer, why in proof.false.items():
            self._board.name(peer, why)
        wanted = self._wanted - proof.unproven
        for peer, tensors in catalogues.items():
            if why := self._misshapen(peer, tensors, wanted & proof.hashes.keys()):
                self._board.name(peer, why)
        usable: dict[str, frozenset[str]] = {}
        for peer, tensors in catalogues.items():
            if peer in self.result.false:
                continue
            usable[peer] = frozenset(wanted & tensors.keys())
            if why := self._misshapen(peer, tensors, wanted):
                raise Refused(why)
            for key in usable[peer]:
                entry = tensors[key]
                known = self._agreed.setdefault(key, entry)
                if (known.sha256, known.dtype, known.shape) != (entry.sha256, entry.dtype, entry.shape):
                    raise Refused(f"{short(peer)} has another {key} of {self._mark} than the other sources")
        return usable

    def _misshapen(self, peer: str, tensors: Mapping[str, TensorEntry], keys: Collection[str]) -> str:
        """Return what a source offers in another shape than is wanted, before memory is taken for it; "": nothing."""
        for key, entry in tensors.items():
            if key in keys and entry.shape != self._shapes[key]:
                return f"{short(peer)} offers {key} of shape {entry.shape}, not {self._shapes[key]}"
        return ""

    def _complain(self, lacking: Collection[str]) -> None:
        if lacking and self.result.false:
            raise Refused("; ".join(self.result.false.values()))
        if lacking:
            raise Lacking(f"nobody who answers has {min(lacking)} of {self._mark} ({len(lacking)} tensors are lacking)")

    async def _pull(self, peer: str, stream: Stream, keys: frozenset[str], take: Take) -> None:
        """Take one piece after the other from a source, until none is left that it could give."""
        board, now = self._board, asyncio.get_running_loop().time
        pace = board.paces[peer]
        while pace.owed or await board.any_left(peer, keys, now):
            if peer in board.false:
                break
            try:
                async with asyncio.timeout(self._piece_seconds):
                    while pace.takes_more() and (piece := board.take(peer, keys, now())) is not None:
                        pace.asked(piece, now())
                        await write_message(stream, piece)
                    if not pace.owed:
                        continue  # another source was quicker
                    found = await read_message(stream, TransferReply)
                    if found.size != pace.owed[0].size:
                        raise Refused("it gives no more of it")
                    data = await stream.read(found.size)
            except (ConnectionError, Refused, TimeoutError) as error:
                log.info("%s gives no more of %s: %s", short(peer), self._mark, str(error) or "no answer")
                break
            piece = pace.gave(now())
            if await board.put(peer, piece, data, take):
                self.result.bytes += piece.size
                self.result.sources.add(peer)
        await board.leave(peer)


def _described(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[TensorEntry, Bytes]]:
    """Return hash and bytes of each tensor, by key."""
    return {key: tensor_entry("ahead.safetensors", tensor) for key, tensor in tensors.items()}


def _is_same(one: TensorEntry, other: TensorEntry) -> bool:
    return (one.sha256, one.dtype, one.shape) == (other.sha256, other.dtype, other.shape)
