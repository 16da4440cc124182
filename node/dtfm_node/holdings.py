"""The states of the model that this node holds, and gives to others: what it trains on, what it trained on before as
long as others may lack it, and snapshots."""

import asyncio
import contextlib

import torch

from dtfm_node.engine.machine import Compute
from dtfm_node.engine.stage_state import StageState
from dtfm_node.optimizer import state_tensors
from dtfm_node.snapshots import Snapshots, read_piece
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import tensor_entry
from dtfm_protocol.faults import point
from dtfm_protocol.planes.data import Bytes
from dtfm_protocol.standing import HOLDINGS_LIMIT, Holding, Mark, Promise, Standing

REDO_SECONDS = 10.0
"""How long a state that this node is to have may take until it has it: the new plan reaches peers one by one."""
LIVE = "live.safetensors"


class Holdings:
    """What this node holds. `catalogue` and `read` give it to others."""

    def __init__(self, snapshots: Snapshots, compute: Compute) -> None:
        self.snapshots = snapshots
        self.live: StageState | None = None
        """What the plan in force trains, or trained."""
        self.coming: StageState | None = None
        """What the next plan will train: being loaded. What of it is there stays if that plan fails."""
        self.loaded: set[str] = set()
        """The keys of `coming` that are there."""
        self._coming_mark = Mark()
        self._compute = compute
        self._entries: tuple[StageState, Mark, dict[str, TensorEntry]] | None = None
        self._changed = asyncio.Condition()

    def standing(self, promise: Promise) -> Standing:
        """What a new plan must know of this node."""
        live, found = self.live, []
        prepared = norm = None
        if live is not None and live.mark is not None:
            found.append(Holding(mark=live.mark, layers=live.layers, live=True))
            prepared, norm = live.prepared, live.norm
        found += self.snapshots.holdings()
        return Standing(
            promise=promise,
            holdings=tuple(found[:HOLDINGS_LIMIT]),
            prepared=prepared,
            norm=norm,
        )

    async def redo(self, mark: Mark, norm: float | None) -> None:
        """Apply the gradients that are held, if they lead to `mark`: their step was final."""
        live = self.live
        if live is not None and live.mark != mark and live.prepared == mark and norm is not None:
            await self._compute(live.apply, norm)
        async with self._changed:
            self._changed.notify_all()

    def begin(self, state: StageState, mark: Mark) -> None:
        """`state` is going to be loaded; what was loaded of it for a plan that failed before it began stays."""
        before, self.coming = self.coming, state
        if before is None or mark != self._coming_mark:
            self.loaded = set()
        else:
            keys = {key for key in self.loaded if key.partition("/")[2] in state.parameters}
            tensors = dict(state_tensors(before.parameters, before.optimizer))
            for key in keys:
                state.adopt(key, tensors[key])
            self.loaded = keys
        self._coming_mark = mark

    def enter(self, state: StageState) -> None:
        """All peers hold what the new plan begins with: what was before may go."""
        self.live, self.coming, self._entries = state, None, None

    def drop(self) -> None:
        """This node serves no stage any more, and nobody needs what it trained."""
        self.live = self.coming = self._entries = None

    async def catalogue(self, mark: Mark) -> dict[str, TensorEntry]:
        """The tensors of the state `mark` that are here; see `StateSource`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REDO_SECONDS if self._becomes(mark) else 0.0), self._changed:
                await self._changed.wait_for(lambda: self._is_live(mark))
        entries = {key: entry for key, (entry, _) in self.snapshots.of(mark).items()}
        if self._is_live(mark):
            entries |= await self._compute(self._describe, mark)
        return entries

    async def read(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        """Bytes of one tensor; see `StateSource`."""
        point("mid-state-transfer", mark.step)
        if self._is_live(mark) and self._entries is not None and key in self._entries[2]:
            data: Bytes | None = await self._compute(self._piece, mark, key, offset, size)
            return data
        found = self.snapshots.of(mark).get(key)
        if found is None:
            return None
        entry, path = found
        return await asyncio.to_thread(read_piece, path, entry.offset + offset, size)

    def _is_live(self, mark: Mark) -> bool:
        return self.live is not None and self.live.mark == mark

    def _becomes(self, mark: Mark) -> bool:
        return self.live is not None and mark in (self.live.mark, self.live.prepared)

    def _describe(self, mark: Mark) -> dict[str, TensorEntry]:
        """Hash the live state, once. On the compute thread: no update can come in between."""
        live = self.live
        if live is None or live.mark != mark:
            return {}
        if self._entries is None or self._entries[:2] != (live, mark):
            tensors = state_tensors(live.parameters, live.optimizer)
            self._entries = (live, mark, {key: tensor_entry(LIVE, tensor)[0] for key, tensor in tensors})
        return self._entries[2]

    def _piece(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        live = self.live
        if live is None or live.mark != mark:
            return None
        tensor = dict(state_tensors(live.parameters, live.optimizer))[key]
        piece = tensor.reshape(-1).view(torch.uint8)[offset : offset + size].cpu().contiguous()
        return memoryview(piece.numpy().data)
