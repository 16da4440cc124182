"""Weights that are never trained of the stages of which this node keeps copies, or that it is to serve soon, fetched
while training goes on: so that who takes such a stage over has all of it, and nobody waits."""

import asyncio
from collections.abc import Collection

from dtfm_node.state.base_weights import PieceFetch
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import BasePiece, ResolvedJob
from dtfm_protocol.model.base_values import BaseValues
from dtfm_protocol.model.frozen_parameters import frozen_names
from dtfm_protocol.model.tied_embeddings import kept_names
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import DataPlane


async def fetch_shadowed(plane: DataPlane, job: ResolvedJob, plan: Plan, holdings: Inventory) -> None:
    """Fetch what this node lacks of them; waits while nobody gives them. Where there is no room, or what the
    coordinator has is damaged, the rest is left to be fetched by who takes over."""
    if not job.keeps_base:
        return
    for stage in range(len(plan.stages)):
        if plan.shadow_of(stage) != plane.peer_id:
            continue
        pieces = await asyncio.to_thread(_pieces, job, plan, stage, holdings)
        try:
            fetched = await PieceFetch(plane, plan, holdings, ahead_of=stage).run(pieces)
        except Refused as error:
            log.info("weights of a part that this machine keeps copies of are not fetched ahead: %s", error)
            return
        log.debug("stage %d: %d bytes of weights fetched ahead", stage + 1, fetched.bytes)


async def fetch_coming(plane: DataPlane, job: ResolvedJob, layout: Plan, author: str, holdings: Inventory) -> None:
    """Fetch what this node lacks of the weights that are never trained for its stage of a layout that is to come.

    Args:
        author: the coordinator, which has all of them.

    Raises:
        Refused: there is no room for it, or the coordinator's own is damaged.
    """
    stage = layout.stage_of(plane.peer_id)
    if stage is not None and job.keeps_base:
        pieces = await asyncio.to_thread(_pieces, job, layout, stage, holdings)
        by_author = layout.model_copy(update={"author": author})
        await PieceFetch(plane, by_author, holdings, ahead_of=stage).run(pieces)


def _pieces(job: ResolvedJob, plan: Plan, stage: int, holdings: Inventory) -> Collection[BasePiece]:
    """Return the pieces with the weights of a stage that are never trained."""
    values = BaseValues(job, holdings.pieces)
    names = kept_names(job.config, plan.stages[stage]) & frozen_names(job.config, job.training)
    return {piece.sha256: piece for name in sorted(names) if (piece := values.piece(name)) is not None}.values()
