"""Restoring of a stage to the state that its plan begins with: from this node's memory and disk, else from others."""

from collections.abc import Collection, Mapping
from pathlib import Path

from dtfm_node.engine.runtime import Compute
from dtfm_node.engine.state_tensors import load_tensor, state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.base_weights import load_base
from dtfm_node.state.catalogue_proof import CertifiedPart
from dtfm_node.state.fetch import Fetch, Fetched
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.snapshots import read_piece
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor
from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.frozen_parameters import trained_names
from dtfm_protocol.model.tied_embeddings import kept_names
from dtfm_protocol.plan.peer_state import LayerRange
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import is_one_state
from dtfm_protocol.plan.state_vote import Votes
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.wire.stream import Bytes, DataPlane


async def load_state(
    plane: DataPlane, job: ResolvedJob, plan: Plan, state: TrainingStage, holdings: Inventory, compute: Compute
) -> Fetched:
    """Bring `state`, which `holdings` has as the coming one, to what `plan` resumes from; return what was fetched.

    Raises:
        ConnectionError: no peer that answers can give a part of it.
        Refused: what was given does not fit.
    """
    mark = plan.resume.mark
    base = await load_base(plane, job, plan, state, holdings, compute)
    if mark.step == 0:
        return base
    wanted = set(state.optimizer.table.keys(state.parameters, mark.step)) - holdings.loaded
    parts = await compute(certified_parts, job, plan)

    def take_own() -> None:
        """Take over what this node has in memory as it is; read and check what it has on disk. What it has voted on
        itself, and all others otherwise, is fetched from them."""
        for own in holdings.at(mark):
            if _is_outvoted(parts, holdings.snapshots.votes_on(mark, own.layers)):
                continue
            if not is_one_state(own.commit, plan.resume.commit):
                continue
            for key, tensor in state_tensors(own.parameters, own.optimizer):
                if key in wanted - holdings.loaded:
                    state.adopt(key, tensor, own)
                    holdings.loaded.add(key)
        on_disk = holdings.snapshots.of(mark, plan.resume.commit)
        false = {key for part in parts if _is_false(part, on_disk) for key in part.keys}
        for key, (entry, path) in on_disk.items():
            if key in false:
                continue
            if key in wanted - holdings.loaded:
                data = read_piece(path, entry.offset, entry.bytes)
                try:
                    put(key, entry, data or b"")
                except Refused:
                    holdings.snapshots.discard(path)

    def put(key: str, entry: TensorEntry, data: Bytes) -> None:
        tensor = decode_tensor(entry, data)
        slot = state.optimizer.table.of_key(key)
        if tuple(tensor.shape) != (shape := slot.shape(state.parameters[key.partition("/")[2]].shape)):
            raise Refused(f"{key} of {mark} has shape {tuple(tensor.shape)}, not {shape}")
        if entry.dtype != slot.dtype:
            raise Refused(f"{key} of {mark} is {entry.dtype}, not {slot.dtype}")
        load_tensor(state.parameters, state.optimizer, key, tensor)
        holdings.loaded.add(key)

    async def take(key: str, entry: TensorEntry, data: Bytes) -> None:
        await compute(put, key, entry, data)

    await compute(take_own)
    fetched = Fetched()
    if lacking := wanted - holdings.loaded:
        table = state.optimizer.table
        shapes = {key: table.of_key(key).shape(state.parameters[key.partition("/")[2]].shape) for key in lacking}
        sources = _sources(plan, state, plane.peer_id)
        ahead = await holdings.ahead.at(mark.step) if holdings.ahead is not None else {}
        fetched = await Fetch(plane, mark, shapes, sources, table=table, parts=parts, ahead=ahead).run(take)
        givers = "another machine" if len(fetched.sources) == 1 else f"{len(fetched.sources)} machines"
        if fetched.bytes:
            log.info("fetched %s of the model after step %d from %s", bytes_in_words(fetched.bytes), mark.step, givers)
        else:
            log.info("all that is needed of the model after step %d has come ahead", mark.step)
    await compute(state.settle, mark, plan.resume.commit)
    return fetched.with_more(base)


def _sources(plan: Plan, state: TrainingStage, me: str) -> list[str]:
    """Return the peers that hold layers of the stage; for embeddings that it shares, those of the first stage, too."""
    first, end = state.layers
    return [
        source.peer
        for source in plan.resume.sources
        if source.peer != me
        and any(
            (low < end and first < high) or (low == 0 and bool(state.gradients.shared)) for low, high in source.layers
        )
    ]


def certified_parts(job: ResolvedJob, plan: Plan) -> tuple[CertifiedPart, ...]:
    """Return what is certified of the state that `plan` resumes from, with the keys of each part's tensors."""
    mark, slots = plan.resume.mark, state_table(job.training.optimizer, job.training.weights)

    def names(layers: LayerRange) -> frozenset[str]:
        return trained_names(job.config, job.training, kept_names(job.config, layers))

    return tuple(
        CertifiedPart(one, frozenset(slots.keys(names(one.layers), mark.step)))
        for one in plan.resume.digests
        if one.mark == mark and 0 <= one.layers[0] < one.layers[1] <= plan.layers
    )


def _is_outvoted(parts: Collection[CertifiedPart], votes: Votes) -> bool:
    """Whether another digest than this node has voted for is certified of its own part."""
    return any(
        vote.layers == part.certified.layers and vote.digest != part.certified.digest
        for vote in votes
        for part in parts
    )


def _is_false(part: CertifiedPart, on_disk: Mapping[str, tuple[TensorEntry, Path]]) -> bool:
    """Whether all of a part is on this node's disk, and is not what is certified."""
    hashes = {key: entry.sha256 for key, (entry, _) in on_disk.items() if key in part.keys}
    if hashes.keys() != part.keys or part.fits(hashes):
        return False
    low, high = part.certified.layers
    log.warning("the copy of layers %d to %d of %s here is not what its replicas have signed", low, high, part[0].mark)
    return True
