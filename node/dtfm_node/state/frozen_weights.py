"""Frozen weights of a stage, those that are not trained: from this node's memory, else drawn from the job's seed, or
fetched from the coordinator where the job begins with pretrained ones."""

import torch

from dtfm_node.engine.runtime import Compute
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.fetch import Fetch, Fetched
from dtfm_node.state.inventory import Inventory
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor
from dtfm_protocol.checkpoint.state_slots import WEIGHT, state_table
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.quantities import bytes_in_words
from dtfm_protocol.wire.stream import Bytes, DataPlane


async def load_frozen(
    plane: DataPlane, job: ResolvedJob, plan: Plan, state: TrainingStage, holdings: Inventory, compute: Compute
) -> Fetched:
    """Fill in the weights of `state` that are not trained; return what was fetched.

    They are the same in every state, so `holdings` keeps them from one plan to the next. Pretrained ones are fetched
    from the plan's author, whose checkpoint of step 0 the job begins with: it says what the job is, and so what they
    are.

    Raises:
        ConnectionError: it does not answer, or has them no more.
        Refused: what it gives does not fit.
    """

    def take_own() -> None:
        for name, parameter in state.frozen.items():
            if name in holdings.frozen:
                parameter.data = holdings.frozen[name]

    def draw(name: str) -> None:
        put(name, initial_value(job.config, job.training.seed, name, state.frozen[name].shape))

    def put_fetched(key: str, entry: TensorEntry, data: Bytes) -> None:
        put(key.partition("/")[2], decode_tensor(entry, data))

    def put(name: str, value: torch.Tensor) -> None:
        parameter = state.frozen[name]
        if value.shape != parameter.shape or value.dtype != parameter.dtype:
            raise Refused(f"{name} as the job begins is {value.dtype} {tuple(value.shape)}, not of the model's form")
        parameter.data.copy_(value)
        holdings.frozen[name] = parameter.data

    async def take(key: str, entry: TensorEntry, data: Bytes) -> None:
        await compute(put_fetched, key, entry, data)

    await compute(take_own)
    fetched, lacking = Fetched(), state.frozen.keys() - holdings.frozen.keys()
    if not job.pretrained:
        for name in sorted(lacking):
            await compute(draw, name)
    elif lacking:
        shapes = {f"{WEIGHT}/{name}": tuple(state.frozen[name].shape) for name in lacking}
        table = state_table(job.training.optimizer, job.training.weights)
        fetched = await Fetch(plane, Mark(), shapes, [plan.author], table=table).run(take)
        log.info("fetched %s of weights that are not trained from the coordinator", bytes_in_words(fetched.bytes))
    holdings.frozen = {name: parameter.data for name, parameter in state.frozen.items()}
    return fetched
