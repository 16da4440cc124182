"""From the votes of replicas to a plan's digests to a fetch: who changes a copy is found out, also after restarts."""

from pathlib import Path

import pytest
import torch

from dtfm_coordinator.records.state_vote_file import StateVoteFile
from dtfm_coordinator.records.state_votes import certified, votes_in
from dtfm_node.state.fetch import Fetch
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.restore import certified_parts
from dtfm_node.state.snapshots import Snapshots, write_snapshot
from dtfm_node.state.state_reading import Reading
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor
from dtfm_protocol.checkpoint.state_slots import ADAMW
from dtfm_protocol.checkpoint.transfers import STATE, serve_state
from dtfm_protocol.model.tied_embeddings import kept_names
from dtfm_protocol.plan.peer_state import Promise
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Bytes
from tests.harness.named_peers import SWARM, id_of
from tests.node.keeping_nodes import (
    ALONE,
    STAGES,
    A,
    State,
    Swarm,
    Z,
    at,
    now,
    row,
    same,
    state_under,
    swarm,
    until_there,
)
from tests.node.small_states import inline, job
from tests.node.test_training_stage import one_thread

__all__ = ["one_thread", "swarm"]  # fixtures
FRONT = STAGES[0]
NEWCOMER = id_of("newcomer")


def restarted(folder: Path) -> Inventory:
    """What a node's next process finds on its disk."""
    snapshots = Snapshots(folder)
    snapshots.load()
    return Inventory(snapshots, inline)


def change_copy(folder: Path) -> None:
    """Change a snapshot so that file and hashes fit each other, and keep the votes that came with it."""
    (beside,) = folder.glob("*.json")
    before = restarted(folder).snapshots
    tensors = {}
    for key, (entry, path) in before.of(at(1)).items():
        data = path.read_bytes()[entry.offset : entry.offset + entry.bytes]
        tensors[key] = decode_tensor(entry, data) + (1e-3 if key.startswith("exp_avg_sq/") else 0.0)
    votes = before.votes_on(at(1), FRONT)
    write_snapshot(folder, at(1), FRONT, tensors, Reading(tensors), None, (), lambda _: votes)
    assert beside.exists()


def plan_after(folder: Path, holders: dict[str, Inventory]) -> Plan:
    """The plan that a coordinator makes, restarted in between, of what holders report."""
    replicas_of = ALONE.chain.replicas_of
    for peer, holdings in holders.items():
        standing = holdings.standing(Promise())
        StateVoteFile(folder, SWARM).hear(votes_in(standing), replicas_of)
        assert standing.holdings[0].votes, peer
    votes = StateVoteFile(folder, SWARM).votes
    digests = certified(at(1), votes, replicas_of, holders.keys(), lambda _: None)
    assert [digest.layers for digest in digests] == [FRONT]
    sources = tuple(Source(peer=peer, layers=(FRONT,)) for peer in holders)
    resume = Resume(mark=at(1), sources=sources, digests=digests)
    return Plan(version=2, stages=STAGES, routes=((NEWCOMER, A),) * 4, resume=resume)


async def fetched(network: MemoryNetwork, plan: Plan) -> tuple[State, dict[str, str]]:
    """What a newcomer gets of the front stage, and who was left out."""
    found: State = {}

    async def take(key: str, entry: TensorEntry, data: Bytes) -> None:
        found[key] = decode_tensor(entry, data)

    keys = ADAMW.keys(kept_names(job().config, FRONT), 1)
    wanted = state_under(ALONE, A)
    shapes = {key: tuple(wanted.parameters[key.partition("/")[2]].shape) for key in keys}
    sources = [source.peer for source in plan.resume.sources]
    fetch = Fetch(
        MemoryDataPlane(network, NEWCOMER), at(1), shapes, sources, table=ADAMW, parts=certified_parts(job(), plan)
    )
    result = await fetch.run(take)
    return found, result.false


@pytest.mark.parametrize("honest", [True, False], ids=["the copy is as it was given", "the copy was changed"])
async def test_a_shadow_that_changed_its_copy_is_named_and_the_state_comes_from_another(
    swarm: Swarm, tmp_path: Path, honest: bool
) -> None:
    state = state_under(ALONE, A)
    async with swarm.node(A, ALONE) as checkpointer, swarm.node(Z, ALONE) as shadow:
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await until_there(shadow.snapshots, at(1))
        await swarm.answered()
    if not honest:
        change_copy(tmp_path / Z)
    holders = {peer: restarted(tmp_path / peer) for peer in (Z, A)}
    network = MemoryNetwork()
    for peer, holdings in holders.items():
        await MemoryDataPlane(network, peer).serve(
            STATE, lambda stream, holdings=holdings: serve_state(stream, holdings)  # type: ignore[misc]
        )  # fmt: skip
    (tmp_path / "coordinator").mkdir()
    found, false = await fetched(network, plan_after(tmp_path / "coordinator", holders))
    assert same(found, now(state))
    assert false.keys() == (set() if honest else {Z})
    assert torch.isfinite(next(iter(found.values()))).all()
