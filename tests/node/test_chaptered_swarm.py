"""A swarm trains on a corpus in chapters as one process does on the same one without: lists and shards are fetched."""

from functools import partial
from pathlib import Path

import pytest

from dtfm_node.runner.token_source import TokenSource
from dtfm_node.state.disk_budget import DiskBudget
from dtfm_protocol.checkpoint.transfers import SHARDS, serve_shards
from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from tests.node.engine_reference import alone, assert_same_training
from tests.node.engine_swarm import VOCAB, Swarm, corpus_tokens, home, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow


def kept(folder: ShardFolder) -> int:
    return sum(folder.sizes().values())


async def served(network: MemoryNetwork, peer: str, folder: ShardFolder) -> MemoryDataPlane:
    plane = MemoryDataPlane(network, peer)
    await plane.serve(SHARDS, lambda stream: serve_shards(stream, folder.find))
    return plane


@pytest.mark.parametrize("name", ["2x2", "crossed routes"])
async def test_a_swarm_on_a_corpus_in_chapters_computes_what_one_process_does_without_them(
    home: Path, tmp_path: Path, name: str
) -> None:
    """Each peer has a disk of its own, with room for two steps and little more."""
    corpus = write_shards(tmp_path / "owner", [corpus_tokens()], VOCAB, shard_bytes=64, chapter_shards=4)
    assert len(corpus.chapters) > 10
    job = job_of(home).model_copy(update={"corpus": corpus})
    network, plan = MemoryNetwork(), plan_of(name)
    swarm = Swarm(home, job, plan, network)
    await served(network, "owner", ShardFolder(tmp_path / "owner"))
    folders = {}
    for me, peer in swarm.peers.items():
        folder = folders[me] = ShardFolder(tmp_path / me)
        budget = DiskBudget(64 * 70)
        budget.counts(partial(kept, folder))
        peer.source = TokenSource(await served(network, me, folder), job, folder, "owner", 0.01, budget, pause=60.0)
    found = await swarm.run()
    assert_same_training(found, alone(home, False), 1e-5)
    held = {me: set(folder.sizes()) for me, folder in folders.items()}
    assert all(held[me] for me in (*plan.replicas(0), *plan.replicas(len(plan.stages) - 1)))
    assert all(kept(folder) <= 64 * 70 for folder in folders.values())
