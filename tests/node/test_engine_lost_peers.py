"""A peer that vanishes, or a run that diverges, leaves every other peer with whole steps and the right bits."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.training_stage import Diverged
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Resume
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes
from tests.harness.named_peers import SWARM, identity_of
from tests.node.engine_swarm import (
    STEPS,
    Swarm,
    home,
    identical,
    job_of,
    one_thread,
    plan_of,
)
from tests.node.finals import ancestors

__all__ = ["home", "one_thread"]  # fixtures
pytestmark = pytest.mark.slow


def at(step: int, call: str, occurrence: int = 1) -> Callable[[int, str], bool]:
    """The how-manieth compute call of a name in a step."""
    seen = itertools.count(1)
    return lambda now, name: now == step and name == call and next(seen) == occurrence


@pytest.mark.parametrize(
    ("name", "victim", "moment"),
    [
        ("2x2", "x", (3, "begin_step", 1)),
        ("2x2", "x", (3, "forward", 2)),
        ("2x2", "y", (3, "backward", 1)),
        ("2x2", "b", (3, "backward", 2)),
        ("2x2", "y", (3, "sum_of_parts", 1)),
        ("2x2", "a", (3, "forward", 1)),
        ("2x2", "a", (3, "_replace", 1)),
        ("1x4", "n", (3, "forward", 1)),
        ("crossed routes", "m", (3, "backward", 3)),
        ("4x1", "c", (3, "encode", 2)),
        ("2x2 zero-bubble", "y", (3, "weight", 1)),
        ("2x2 zero-bubble", "a", (3, "weight", 2)),
    ],
)
async def test_a_peer_that_vanishes_before_the_commit_costs_the_step_and_nothing_else(
    home: Path, name: str, victim: str, moment: tuple[int, str, int]
) -> None:
    swarm = Swarm(home, job_of(home, tied=True), plan_of(name))
    swarm.peers[victim].pause = at(*moment)
    for me, errors in (await swarm.ends(victim)).items():
        assert {type(error) for error in errors} == {PeerLost}, me
        peer = swarm.peers[me]
        assert [row.step for row in peer.rows] == [1, 2]
        assert identical(peer.now(), peer.states[2])


@pytest.mark.parametrize(("name", "victim"), [("1x4", "x"), ("1x4", "m"), ("1x2", "x")])
async def test_a_peer_that_vanishes_before_it_ever_sent_a_tensor_is_noticed_by_all(
    home: Path, name: str, victim: str
) -> None:
    swarm = Swarm(home, job_of(home), plan_of(name))
    swarm.peers[victim].pause = at(1, "forward")
    for me, errors in (await swarm.ends(victim)).items():
        assert {type(error) for error in errors} == {PeerLost}, me
        assert identical(swarm.peers[me].now(), swarm.peers[me].states[0])


@pytest.mark.parametrize("victim", ["a", "x"])
async def test_a_peer_that_vanishes_at_the_commit_leaves_none_with_half_a_step(home: Path, victim: str) -> None:
    """The arbiter, `a`, and another one: each of the rest is before the step or after it, never in between."""
    whole = Swarm(home, job_of(home), plan_of("2x2"))
    await whole.run()
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    swarm.peers[victim].pause = at(3, "apply")
    for me, errors in (await swarm.ends(victim)).items():
        assert {type(error) for error in errors} == {PeerLost}, me
        peer = swarm.peers[me]
        assert len(peer.rows) in {2, 3}
        assert identical(peer.now(), whole.peers[me].states[len(peer.rows)])


@pytest.mark.parametrize("name", ["2x2", "1x4", "2x2 zero-bubble"])
async def test_who_did_not_hear_that_a_step_became_final_can_apply_it_later_to_the_same_bits(
    home: Path, name: str
) -> None:
    """The arbiter vanishes with all votes in hand and no commit sent; what the others hold then is worth a step."""
    whole = Swarm(home, job_of(home), plan_of(name))
    final = await whole.run()
    swarm = Swarm(home, job_of(home), plan_of(name))

    class Silent(Exchange):
        async def send(self, peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
            if key.kind is Kind.COMMIT and key.step == 3:
                swarm.peers["a"].paused.set()
                await asyncio.Event().wait()
            await super().send(peer, key, payload, seal)

    swarm.peers["a"].exchanging = Silent.running
    await swarm.ends("a")
    mark = Mark(step=3, plan=1)
    commit = SignedCommit.made(identity_of("a"), SWARM, 1, 3, Commit(grad_norm=final.rows[2].grad_norm))
    lineage = ancestors((1, Mark()), arbiter="a")
    after = plan_of(name, version=2, resume=Resume(mark=mark, commit=commit)).model_copy(update={"lineage": lineage})
    for me in swarm.peers.keys() - {"a"}:
        stage = swarm.peers[me].stage
        assert stage is not None
        assert (stage.mark, stage.prepared) == (Mark(step=2, plan=1), mark)
        await swarm.peers[me].holdings.redo(after, swarm.peers[me].evidence.signer)
        assert (stage.mark, stage.prepared, stage.commit) == (mark, None, commit)
        assert identical(swarm.peers[me].now(), whole.peers[me].states[3])


async def test_a_run_that_diverges_stops_everywhere_before_the_step_that_broke_it(home: Path) -> None:
    swarm = Swarm(home, job_of(home, learning_rate=1e30), plan_of("2x2"))
    ends = await swarm.ends()
    assert any(isinstance(error, Diverged) for errors in ends.values() for error in errors)
    for me, errors in ends.items():
        assert errors
        assert {type(error) for error in errors} <= {Diverged, PeerLost}, me
        peer = swarm.peers[me]
        assert 1 <= len(peer.rows) < STEPS
        assert identical(peer.now(), peer.states[len(peer.rows)])
