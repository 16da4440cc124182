"""Restoring of a stage to the state that its plan begins with: from this node's memory and disk, else from others."""

from dtfm_node.engine.optimizer import load_tensor, state_keys, state_tensors
from dtfm_node.engine.runtime import Compute
from dtfm_node.engine.stage_state import StageState
from dtfm_node.state.fetch import Fetch, Fetched
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.snapshots import read_piece
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import is_one_state
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import Bytes, DataPlane


async def load_state(
    plane: DataPlane, job: ResolvedJob, plan: Plan, state: StageState, holdings: Inventory, compute: Compute
) -> Fetched:
    """Bring `state`, which `holdings` has as the coming one, to what `plan` resumes from; return what was fetched.

    Raises:
    ConnectionError: no peer that answers can give a part of it.
    Refused: what was given does not fit.
    """
    mark = plan.resume.mark
    if mark.step == 0 and not job.pretrained:
        await compute(state.initialise)
        return Fetched()
    wanted = set(state_keys(list(state.parameters), mark.step)) - holdings.loaded

    def take_own() -> None:
        """Take over what this node has in memory as it is; read and check what it has on disk."""
        for own in holdings.at(mark):
            if not is_one_state(own.commit, plan.resume.commit):
                continue
            for key, tensor in state_tensors(own.parameters, own.optimizer):
                if key in wanted - holdings.loaded:
                    state.adopt(key, tensor, own)
                    holdings.loaded.add(key)
        for key, (entry, path) in holdings.snapshots.of(mark, plan.resume.commit).items():
            if key in wanted - holdings.loaded:
                data = read_piece(path, entry.offset, entry.bytes)
                try:
                    put(key, entry, data or b"")
                except Refused:
                    holdings.snapshots.discard(path)

    def put(key: str, entry: TensorEntry, data: Bytes) -> None:
        tensor = decode_tensor(entry, data)
        parameter = state.parameters[key.partition("/")[2]]
        if tensor.shape != parameter.shape:
            raise Refused(f"{key} of {mark} has shape {tuple(tensor.shape)}, not {tuple(parameter.shape)}")
        load_tensor(state.parameters, state.optimizer, key, tensor)
        holdings.loaded.add(key)

    async def take(key: str, entry: TensorEntry, data: Bytes) -> None:
        await compute(put, key, entry, data)

    await compute(take_own)
    fetched = Fetched()
    if lacking := wanted - holdings.loaded:
        shapes = {key: tuple(state.parameters[key.partition("/")[2]].shape) for key in lacking}
        fetched = await Fetch(plane, mark, shapes, _sources(plan, state, plane.peer_id)).run(take)
        log.info("fetched %.1f MB of %s from %d peers", fetched.bytes / 1e6, mark, len(fetched.sources))
    await compute(state.settle, mark, plan.resume.commit)
    return fetched


def _sources(plan: Plan, state: StageState, me: str) -> list[str]:
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
