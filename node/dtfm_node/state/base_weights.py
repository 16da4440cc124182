"""Weights that a stage begins with, and those of it that are never trained: from this node's memory, else drawn from
the job's seed, or read from pieces, which are fetched from whoever has them."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from dtfm_node.engine.runtime import Compute
from dtfm_node.engine.state_tensors import load_tensor
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.fetch import Fetched
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.checkpoint.base_transfers import fetch_base
from dtfm_protocol.checkpoint.state_slots import WEIGHT
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.resolved_job import BasePiece, ResolvedJob
from dtfm_protocol.model.base_forms import SCALE, KeptParameter
from dtfm_protocol.model.base_values import BaseValues
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane

OTHERS = 8
"""Peers of other stages that are asked for a piece before the coordinator is: they may have served these layers."""


async def load_base(
    plane: DataPlane, job: ResolvedJob, plan: Plan, state: TrainingStage, holdings: Inventory, compute: Compute
) -> Fetched:
    """Fill in the weights of `state` that are not trained, and, where `plan` begins with the initial state, all others;
    return what was fetched.

    What is not trained is the same in every state, so `holdings` keeps it from one plan to the next.

    Raises:
        Refused: the job names pieces that do not fit its model, there is no room for them, or the coordinator's own
            are damaged.
    """
    values = BaseValues(job, holdings.pieces)
    begins = plan.resume.mark.step == 0

    def take_own() -> None:
        for name, parameter in state.frozen.items():
            if name in holdings.frozen:
                parameter.data = holdings.frozen[name]

    def put_frozen(name: str) -> None:
        value: KeptParameter = values.value(name, tuple(state.frozen[name].shape))
        state.frozen[name].data.copy_(value.value)
        holdings.frozen[name] = state.frozen[name].data
        if value.scale is not None:
            state.frozen[name + SCALE].data.copy_(value.scale)
            holdings.frozen[name + SCALE] = state.frozen[name + SCALE].data

    def put_trained(name: str) -> None:
        value = values.value(name, tuple(state.parameters[name].shape)).value
        load_tensor(state.parameters, state.optimizer, f"{WEIGHT}/{name}", value)

    await compute(take_own)
    lacking = sorted(name for name in state.frozen.keys() - holdings.frozen.keys() if not _is_scale(name, state))
    trained = sorted(state.parameters) if begins and not job.is_drawn else []
    found = {piece.sha256: piece for name in (*lacking, *trained) if (piece := values.piece(name)) is not None}
    fetched = await PieceFetch(plane, plan, holdings).run(found.values())
    for name in lacking:
        await compute(put_frozen, name)
    for name in trained:
        await compute(put_trained, name)
    holdings.frozen = {name: parameter.data for name, parameter in state.frozen.items()}
    if begins and not trained:
        await compute(state.initialise)
    elif begins:
        await compute(state.settle, plan.resume.mark, None)
    elif not job.keeps_base:
        await asyncio.to_thread(holdings.pieces.keep_only, ())  # nobody begins with them any more
    return fetched


def _is_scale(name: str, state: TrainingStage) -> bool:
    return name.endswith(SCALE) and name.removesuffix(SCALE) in state.frozen


class PieceFetch:
    """Fetch of pieces that this node lacks, for its stage of `plan`.

    Replicas begin with different ones, so that they have them from each other, and not all from the coordinator. A
    piece counts when its hash is the job's, so that whoever gives another one wastes time and nothing else.

    Args:
        retry_seconds: see `Timeouts.tokens_retry`.
        piece_seconds: for a source to send what it is asked for at a time.
        ahead_of: another stage, whose pieces are fetched in case that this node takes it over: from the coordinator as
            a rule, as those of the stage have to train; none of the own makes room for them.
    """

    def __init__(
        self,
        plane: DataPlane,
        plan: Plan,
        holdings: Inventory,
        retry_seconds: float = TIMEOUTS.tokens_retry,
        piece_seconds: float = TIMEOUTS.piece,
        ahead_of: int | None = None,
    ) -> None:
        self._plane, self._plan, self._holdings = plane, plan, holdings
        self._retry_seconds, self._piece_seconds = retry_seconds, piece_seconds
        self._ahead_of = ahead_of
        self._false: dict[str, str] = {}
        """What those that have lied have done, by peer id."""

    async def run(self, wanted: Iterable[BasePiece]) -> Fetched:
        """Fetch what is not here; waits while nobody has it.

        Raises:
            Refused: there is no room for it, or the coordinator's own is damaged.
        """
        pieces, me, fetched = self._holdings.pieces, self._plane.peer_id, Fetched(false=self._false)
        pending = list(wanted)
        replicas = self._plan.replicas(self._plan.stage_of(me) or 0)
        turn = (replicas.index(me) if me in replicas else 0) * len(pending) // max(1, len(replicas))
        for piece in pending[turn:] + pending[:turn]:
            if await asyncio.to_thread(pieces.has, piece.sha256):
                continue
            self._make_room(piece, pending)
            try:
                with self._holdings.snapshots.budget.claimed(piece.bytes, "a part of the model as the job begins"):
                    fetched.sources |= await self._fetch(piece)
            except UserError as error:
                raise Refused(str(error)) from None
            fetched.bytes += piece.bytes
        if fetched.bytes:
            log.info("fetched %s of weights that the job begins with", bytes_in_words(fetched.bytes))
        return fetched

    def _make_room(self, piece: BasePiece, needed: Iterable[BasePiece]) -> None:
        if self._ahead_of is None and self._holdings.snapshots.budget.room < piece.bytes:
            self._holdings.pieces.keep_only(one.sha256 for one in needed)

    def _sources(self) -> Sequence[str]:
        """Return the peers that serve the same layers, others that may have served them, and last the coordinator."""
        plan, me = self._plan, self._plane.peer_id
        if self._ahead_of is not None:
            return [peer for peer in (plan.author, *plan.replicas(self._ahead_of)) if peer != me]
        same = plan.replicas(plan.stage_of(me) or 0)
        others = [peer for peer in (*plan.peers, *plan.idle) if peer not in same] if plan.version > 1 else []
        found = dict.fromkeys([*same, *others[:OTHERS], plan.author])
        return [peer for peer in found if peer != me]

    async def _fetch(self, piece: BasePiece) -> set[str]:
        """Fetch one piece; return who has given of it."""
        givers, alone = set[str](), False
        with self._holdings.pieces.receiving(piece.sha256) as into:
            while True:
                for peer in self._sources():
                    if peer in self._false:
                        continue
                    if alone:
                        into.begin_again()
                        givers.clear()
                    before, whole = into.bytes, False
                    try:
                        whole = await fetch_base(self._plane, peer, piece, into, self._piece_seconds)
                    except (ConnectionError, TimeoutError):
                        pass
                    except Refused as error:
                        self._blame(peer, str(error))
                    if into.bytes > before:
                        givers.add(peer)
                    if whole and await asyncio.to_thread(into.keep):
                        return givers
                    if whole:
                        if len(givers) == 1:
                            self._blame(peer, f"{short(peer)} gives another piece of the weights than the job names")
                        # Of several givers nobody knows which one has lied: each is asked for all of it.
                        alone = True
                level = logging.WARNING if self._ahead_of is None else logging.DEBUG  # of what is ahead nobody waits
                log.log(level, "nobody offers the piece %s of the weights now; trying again", piece.sha256[:8])
                await asyncio.sleep(self._retry_seconds)

    def _blame(self, peer: str, why: str) -> None:
        if peer == self._plan.author:
            raise Refused(f"{why}: its file is damaged on the coordinator, which makes it anew when it is served again")
        log.warning("%s; trying another peer", why)
        self._false[peer] = why
