"""Inventory of the states of the model that this node holds, and gives to others: what it trains on, what it trained on
before as long as others may lack it, and snapshots."""

import asyncio
import contextlib

import torch

from dtfm_node.engine.runtime import Compute
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.ahead_copy import AheadCopy
from dtfm_node.state.held_states import HeldStates
from dtfm_node.state.snapshots import Snapshots, read_piece
from dtfm_protocol.checkpoint.base_pieces import FOLDER, PieceFolder
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import tensor_entry
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.peer_state import HOLDINGS_LIMIT, Holding, Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import Bytes

LIVE = "live.safetensors"


class Inventory:
    """Inventory of the states that this node holds. `catalogue` and `read` give them to others (as a `StateSource`).

    Args:
        redo_seconds: see `Timeouts.state_redo`.
        pieces: weights that the job begins with; None: they lie in the snapshots' folder.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        compute: Compute,
        redo_seconds: float = TIMEOUTS.state_redo,
        pieces: PieceFolder | None = None,
    ) -> None:
        self.snapshots = snapshots
        self.pieces = PieceFolder(snapshots.folder / FOLDER) if pieces is None else pieces
        self.held: HeldStates[TrainingStage] = HeldStates()
        """States in memory."""
        self.loaded: set[str] = set()
        """Keys of the tensors of the coming state that are loaded. They stay if its plan fails."""
        self.ahead: AheadCopy | None = None
        """What this node was given ahead of its next plan: never shown or given to others, for it is not proven."""
        self.frozen: dict[str, torch.Tensor] = {}
        """Weights in memory that are not trained, by the parameter's name: the same in every state."""
        self._begins = Mark()
        """Mark that the newest plan begins with."""
        self._compute = compute
        self._redo_seconds = redo_seconds
        self._entries: dict[tuple[int, Mark], dict[str, TensorEntry]] = {}
        """Hashes and places of states' tensors, by the state's `id` and mark."""
        self._changed = asyncio.Condition()

    @property
    def live(self) -> TrainingStage | None:
        """Stage's state that the plan in force trains, or trained."""
        return self.held.live

    @property
    def newest_vote(self) -> StateVote | None:
        """This node's vote on the newest state that it has hashed; None: on none yet."""
        return self.snapshots.newest_vote

    def at(self, mark: Mark) -> list[TrainingStage]:
        """Return the states in memory that are parts of the swarm's state `mark`."""
        return [state for state in self.held.whole if state.mark == mark]

    def standing(self, promise: Promise) -> PeerState:
        """Return what a new plan must know of this node."""
        found = [
            Holding(
                mark=state.mark,
                layers=state.layers,
                live=True,
                commit=state.commit,
                prepared=state.prepared if state is self.live else None,  # what `redo` can apply
                votes=self.snapshots.votes_on(state.mark, state.layers),
            )
            for state in self.held.whole
            if state.mark is not None
        ]
        holdings = [*dict.fromkeys(found), *self.snapshots.holdings()]
        return PeerState(promise=promise, holdings=tuple(holdings[:HOLDINGS_LIMIT]))

    async def redo(self, plan: Plan, signer: Signer) -> None:
        """Apply the gradients that are held if they lead to the state that `plan` resumes from, as the commit that it
        brings along says with which norm: their step was final.

        Args:
            signer: checks signatures in this swarm.

        Raises:
            Refused: the commit is not the one of that step, or its arbiter has not signed it; nothing is applied.
        """
        final, mark, live = plan.resumed_commit(signer), plan.resume.mark, self.live
        if live is not None and live.mark != mark and live.prepared == mark and final is not None:
            await self._compute(live.apply, final.grad_norm, plan.resume.commit)
        async with self._changed:
            self._changed.notify_all()

    def begin(self, state: TrainingStage, mark: Mark) -> None:
        """Begin to load `state`, which is to become `mark`; what was loaded of it for a plan that failed before it
        began stays."""
        before, loaded, self.loaded = self.held.coming, self.loaded, set()
        if before is not None and mark == self._begins:
            tensors = dict(state_tensors(before.parameters, before.optimizer))
            for key in loaded:
                if key.partition("/")[2] in state.parameters:
                    state.adopt(key, tensors[key], before)
                    self.loaded.add(key)
        self.held, self._begins = self.held.begin(state, mark), mark

    def enter(self, state: TrainingStage) -> None:
        """Make `state` the one that is trained: all peers hold what the new plan begins with."""
        self.held = self.held.enter(state, self._begins)

    def begun(self) -> None:
        """Let go of the states of former plans: a step of the new plan is final."""
        self.held, self.ahead = self.held.begun(), None
        self._entries.clear()

    def drop(self) -> None:
        """Let go of all states in memory: this node serves no stage any more, and nobody needs what it trained."""
        self.held, self.ahead = HeldStates(), None
        self.frozen.clear()
        self._entries.clear()

    async def catalogue(self, mark: Mark) -> dict[str, TensorEntry]:
        """Return the tensors of the state `mark` that are here, by key; wait a while for it if this node is about to
        have it."""
        with contextlib.suppress(TimeoutError):
            becomes = self.live is not None and self.live.prepared == mark
            async with asyncio.timeout(self._redo_seconds if becomes else 0.0), self._changed:
                await self._changed.wait_for(lambda: bool(self.at(mark)))
        entries = {key: entry for key, (entry, _) in self.snapshots.of(mark).items()}
        entries |= await self._compute(self._describe, mark)
        return entries

    async def read(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        """Return `size` bytes of one tensor of the state `mark` from `offset` on; None if it is not here."""
        point("mid-state-transfer", mark.step)
        data: Bytes | None = await self._compute(self._piece, mark, key, offset, size)
        found = self.snapshots.of(mark).get(key)
        if data is not None or found is None:
            return data
        entry, path = found
        return await asyncio.to_thread(read_piece, path, entry.offset + offset, size)

    def _describe(self, mark: Mark) -> dict[str, TensorEntry]:
        """Hash the states in memory, each once. It runs on the compute thread, so no update can come in between."""
        entries: dict[str, TensorEntry] = {}
        for state in self.at(mark):
            if (id(state), mark) not in self._entries:
                tensors = state_tensors(state.parameters, state.optimizer)
                self._entries[id(state), mark] = {key: tensor_entry(LIVE, tensor)[0] for key, tensor in tensors}
            entries |= self._entries[id(state), mark]
        return entries

    def _piece(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        for state in self.at(mark):
            tensor = dict(state_tensors(state.parameters, state.optimizer)).get(key)
            if tensor is not None:
                piece = tensor.reshape(-1).view(torch.uint8)[offset : offset + size].cpu().contiguous()
                return memoryview(piece.numpy().data)
        return None
