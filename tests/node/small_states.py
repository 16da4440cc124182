"""States of a small model that a node holds, and plans that resume from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.restore import load_state
from dtfm_node.state.snapshots import Snapshots, write_snapshot
from dtfm_node.state.state_reading import Reading
from dtfm_protocol.checkpoint.shard import decode_tensor, tensor_entry
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.plan.peer_state import Mark, Promise
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.plan.schedule import Action
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from tests.harness.named_peers import vote_on
from tests.node.finals import ancestors, final
from tests.node.test_training_stage import TRAINING, Neighbours, plan_of, state_of

State = dict[str, torch.Tensor]
PROMISE = Promise(version=4, to="c", accepted=3)


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def at(step: int, plan: int = 1) -> Mark:
    return Mark(step=step, plan=plan)


def reduce(state: TrainingStage, step: int) -> None:
    """Compute a step's gradients, up to where only the word is missing that it is final."""
    state.begin_step(lambda group: None)
    neighbours = Neighbours(state)
    for micro_batch in range(4):
        neighbours.act(Action("forward", micro_batch))
        neighbours.act(Action("backward", micro_batch))
    state.prepare(at(step))


def trained(steps: int, role: str = "middle") -> TrainingStage:
    state = state_of(role)
    for step in range(1, steps + 1):
        reduce(state, step)
        state.apply(0.5 * step, final(at(step), 0.5 * step))
    return state


def now(state: TrainingStage) -> State:
    return {key: tensor.clone() for key, tensor in state_tensors(state.parameters, state.optimizer)}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture
def holdings(tmp_path: Path) -> Inventory:
    return Inventory(Snapshots(tmp_path), inline)


async def given(holdings: Inventory, mark: Mark, piece: int = 1000) -> State:
    """All that another node can have of a state."""
    found = {}
    for key, entry in (await holdings.catalogue(mark)).items():
        data = b""
        for offset in range(0, entry.bytes, piece):
            data += bytes(await holdings.read(mark, key, offset, min(piece, entry.bytes - offset)) or b"")
        found[key] = decode_tensor(entry, data)
    return found


def snapshot(holdings: Inventory, state: TrainingStage) -> None:
    assert state.mark is not None
    tensors = dict(state_tensors(state.parameters, state.optimizer))
    folder, mark, layers = holdings.snapshots.folder, state.mark, state.layers
    written, _ = write_snapshot(folder, mark, layers, tensors, Reading(tensors), state.commit)
    holdings.snapshots.add(written)


def job() -> ResolvedJob:
    config = state_of("only").config
    return ResolvedJob(
        name="tiny",
        config=config,
        corpus=Corpus(dtype="uint16", vocab_size=61, shards=(Shard(sha256="0" * 64, tokens=1000),)),
        training=TRAINING,
        evaluation=Evaluation(),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )


def resuming(mark: Mark, norm: float | None = None) -> Plan:
    """A plan that goes on from a state that the first plan, or the second, made final with this norm."""
    commit = final(mark, norm) if norm is not None else None
    lineage = ancestors((1, Mark()), *([(2, at(2))] if mark.plan == 2 else []))
    plan = plan_of("middle", version=3, resume=Resume(mark=mark, commit=commit))
    return plan.model_copy(update={"lineage": lineage})


def stage(plan: Plan) -> TrainingStage:
    return TrainingStage(job().config, plan, "b", TRAINING, torch.device("cpu"))


async def load(holdings: Inventory, plan: Plan, network: MemoryNetwork | None = None) -> TrainingStage:
    """Load the middle stage, alone in the world unless there is a network."""
    state = stage(plan)
    holdings.begin(state, plan.resume.mark)
    plane = MemoryDataPlane(network or MemoryNetwork(), "b")
    fetched = await load_state(plane, job(), plan, state, holdings, inline)
    assert bool(fetched.bytes) == (network is not None)
    return state


def vote_by(name: str, state: TrainingStage) -> StateVote:
    """The vote of a replica of the middle stage on its weights and moments."""
    assert state.mark is not None
    return vote_on(name, state.mark, state.layers, digest_of_state(hashes_of(now(state))))


def hashes_of(tensors: State) -> dict[str, str]:
    return {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in tensors.items()}
