"""A change of plan moves states between peers, and the training does not notice."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.checkpointer import Checkpointer
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, STATE, serve_state
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Resume, Source
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from tests.harness.named_peers import SWARM, id_of, signer_of
from tests.node.engine_reference import LESS, LESS_APART, alone, assert_same_training
from tests.node.engine_swarm import LAYERS, Result, Swarm, home, identical, job_of, one_thread, plan_of

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow
OWNER = "owner"
FROZEN = {"method": "frozen-layers", "layers": (0, 2)}
"""Of a plan with a stage for each layer there are two whose state is empty."""
LORA = {"method": "lora", "lora": {"target_modules": ("v_proj",)}, "learning_rate": 0.02}


@contextlib.asynccontextmanager
async def owner(network: MemoryNetwork, job: ResolvedJob, folder: Path) -> AsyncIterator[CheckpointCollector]:
    """A coordinator that keeps checkpoints and gives them out."""
    archive = CheckpointCollector(CheckpointStore(folder), job, SWARM)
    plane = MemoryDataPlane(network, OWNER)
    await plane.serve(CHECKPOINT, archive.take)
    await plane.serve(STATE, lambda stream: serve_state(stream, archive))
    yield archive


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("before", "after", "keys", "tolerance"),
    [
        ("2x2", "uneven shares", {}, 1e-5),
        ("uneven shares", "1x4", {}, 1e-5),
        ("1x1", "crossed routes", {}, 1e-5),
        ("1x4", "2x2", FROZEN, 1e-5),
        ("uneven shares", "crossed routes", LORA, 1e-5),
        ("2x2", "crossed routes", LESS["both"], LESS_APART),
        ("1x4", "uneven shares", LORA | LESS["moments in 8 bits"], LESS_APART),
    ],
)
async def test_a_change_of_plan_at_a_checkpoint_goes_unnoticed(
    home: Path, tmp_path: Path, before: str, after: str, keys: dict[str, Any], tolerance: float, tied: bool
) -> None:
    """Also of states that are kept in less than fp32, and of which a part alone is trained."""
    job, network = job_of(home, tied=tied, **keys), MemoryNetwork()
    first = plan_of(before, author=OWNER)
    names = {id_of(name): name for name in first.peers}
    first = first.renamed({name: peer for peer, name in names.items()})  # who votes on states has a key
    kept = Resume(mark=Mark(step=3, plan=1), sources=(Source(peer=OWNER, layers=((0, LAYERS),)),))
    async with owner(network, job, tmp_path / "checkpoints") as archive:
        archive.expect(first)
        swarm = Swarm(home, job, first, network)
        start = await swarm.run(last=3)
        for me, peer in swarm.peers.items():
            assert peer.stage is not None
            async with Checkpointer.running(
                peer.plane, UplinkPacer(), Snapshots(tmp_path / me), 1 << 30, signer_of(names[me])
            ) as checkpointer:
                await checkpointer.keep(
                    peer.stage, first, start.rows[2], tuple(start.rows[:3]), handed_in=True, copied=False, last=False
                )
                await checkpointer.settled()
        manifest = archive.newest()
        assert manifest is not None
        assert manifest.step == 3
        digests = archive.certified(kept.mark)
        assert [digest.layers for digest in digests] == list(first.stages)
        second = plan_of(after, version=2, resume=kept.model_copy(update={"digests": digests}))
        going_on = Swarm(home, job, second, network)
        rest = await going_on.run()
    found = Result(start.rows + rest.rows, rest.state)
    assert_same_training(found, alone(home, tied, **keys), tolerance)
    for peer in going_on.peers.values():
        assert identical(peer.states[3], {key: start.state[key] for key in peer.states[3]})


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ("2x2", "uneven shares", {}),
        ("uneven shares", "1x4", {}),
        ("1x1", "crossed routes", {}),
        ("1x4", "2x2", FROZEN),
        ("uneven shares", "crossed routes", LORA),
    ],
)
async def test_a_change_of_plan_without_a_checkpoint_goes_unnoticed(
    home: Path, before: str, after: str, keys: dict[str, Any], tied: bool
) -> None:
    """Peers keep what they have, and give the others what these lack; most states move to nobody."""
    job = job_of(home, tied=tied, **keys)
    former = Swarm(home, job, plan_of(before))
    start = await former.run(last=3)
    held = tuple(Source(peer=me, layers=(former.plan.stages[former.plan.stage_of(me) or 0],)) for me in former.peers)
    second = plan_of(after, version=2, resume=Resume(mark=Mark(step=3, plan=1), sources=held))
    swarm = Swarm(home, job, second, former.network, former)
    rest = await swarm.run()
    assert_same_training(Result(start.rows + rest.rows, rest.state), alone(home, tied, **keys), 1e-5)
    for me, peer in swarm.peers.items():
        lacked = peer.states[3].keys() - (former.peers[me].states[3].keys() if me in former.peers else set())
        assert peer.fetched.bytes == sum(peer.states[3][key].nbytes for key in lacked)


async def test_a_change_of_plan_that_only_moves_shares_leaves_every_bit_where_it_is(home: Path) -> None:
    former = Swarm(home, job_of(home), plan_of("2x2"))
    await former.run(last=3)
    resume = Resume(mark=Mark(step=3, plan=1))  # no sources: everyone must do with what it has
    swarm = Swarm(home, job_of(home), plan_of("uneven shares", version=2, resume=resume), former.network, former)
    await swarm.run()
    for me, peer in swarm.peers.items():
        assert identical(peer.states[3], former.peers[me].states[3])
        assert peer.fetched.bytes == 0
