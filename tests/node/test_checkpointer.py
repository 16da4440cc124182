"""States are kept beside training: on this node's disk, and with the coordinator."""

import asyncio
import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.snapshots import UNSAFE_FILES, Snapshot, Snapshots
from dtfm_protocol.model.tied_embeddings import kept_names
from dtfm_protocol.plan.peer_state import Holding
from dtfm_protocol.plan.plan import Plan
from tests.harness.disks import full_disk
from tests.harness.named_peers import vote_on
from tests.node.keeping_nodes import (
    ALONE,
    NAMES,
    STAGES,
    TWICE,
    A,
    B,
    Swarm,
    Z,
    at,
    digest_of,
    now,
    row,
    said,
    same,
    state_under,
    swarm,
    train,
    until_there,
)
from tests.node.test_training_stage import Neighbours, one_thread, state_of

__all__ = ["one_thread", "swarm"]  # fixtures


async def test_what_is_kept_is_the_state_of_its_step_though_training_goes_on(swarm: Swarm, tmp_path: Path) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        wanted = now(state)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await asyncio.to_thread(train, state, 2)
        await checkpointer.settled()
        (path,) = (tmp_path / A).glob("*.safetensors")
        assert same(load_file(path), wanted)
        assert not same(now(state), wanted)


async def test_every_replica_vouches_for_a_checkpoint_and_the_first_hands_it_in(swarm: Swarm, tmp_path: Path) -> None:
    await swarm.coordinate()
    rows = (row(1),)
    async with swarm.node(A, TWICE) as first, swarm.node(B, TWICE) as second:
        for checkpointer, me in ((first, A), (second, B)):
            await checkpointer.keep(
                state_under(TWICE, me), TWICE, row(1), rows, handed_in=True, copied=False, last=False
            )
            await asyncio.wait_for(checkpointer.settled(), 30)
    (one, share, data), (other, vote, nothing) = swarm.handed_in
    assert (one, other, nothing, vote.size, vote.sha256) == (A, B, b"", 0, None)
    assert share.digest == vote.digest
    assert (share.step, share.plan_version, share.stage, share.eval_loss, share.rows) == (1, 1, 0, 1.5, rows)
    assert hashlib.sha256(data).hexdigest() == share.sha256
    assert swarm.files(B) == []
    (path,) = (tmp_path / A).glob("*.safetensors")
    assert path.read_bytes() == data


async def test_a_last_state_that_an_earlier_plan_has_made_is_handed_in_as_it_is(swarm: Swarm) -> None:
    """Where that plan ended before the checkpoint was whole, no step is left whose metrics could come along."""
    await swarm.coordinate()
    later = TWICE.model_copy(update={"version": 2})
    async with swarm.node(A, later) as checkpointer:
        await checkpointer.keep(state_under(TWICE, A), later, None, (), handed_in=True, copied=False, last=True)
        await asyncio.wait_for(checkpointer.settled(), 30)
    ((_, share, data),) = swarm.handed_in
    assert (share.step, share.plan_version, share.eval_loss) == (1, 2, None)
    assert [vote.mark for vote in share.votes] == [at(1)]
    assert data


async def test_every_replica_votes_on_weights_and_moments_whether_or_not_it_writes_them(swarm: Swarm) -> None:
    await swarm.coordinate()
    states = {A: state_under(TWICE, A), B: state_under(TWICE, B)}
    with torch.no_grad():
        next(iter(states[B].optimizer.moments.values())).view(-1)[0] += 1e-3
    wanted = {peer: vote_on(NAMES[peer], at(1), (0, 5), digest_of(state)) for peer, state in states.items()}
    assert wanted[A].digest != wanted[B].digest
    for peer, state in states.items():
        async with swarm.node(peer, TWICE) as checkpointer:
            assert checkpointer.snapshots.newest_vote is None
            await checkpointer.keep(state, TWICE, row(1), (), handed_in=True, copied=False, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
            assert checkpointer.snapshots.votes_on(at(1), (0, 5)) == (wanted[peer],)
            newest = wanted[peer]
            assert checkpointer.snapshots.newest_vote == newest
    assert {peer: share.votes for peer, share, _ in swarm.handed_in} == {A: (wanted[A],), B: (wanted[B],)}
    assert swarm.files(B) == []


async def test_a_restart_keeps_the_vote_beside_its_snapshot_and_beside_its_copy(swarm: Swarm, tmp_path: Path) -> None:
    state = state_under(ALONE, A)
    async with swarm.node(A, ALONE) as checkpointer, swarm.node(Z, ALONE) as shadow:
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await until_there(shadow.snapshots, at(1))
    for peer in (A, Z):
        again = Snapshots(tmp_path / peer)
        again.load()
        assert again.votes_on(at(1), STAGES[0]) == (vote_on("a", at(1), STAGES[0], digest_of(state)),)
        assert again.votes_on(at(2), STAGES[0]) == ()


async def test_replicas_that_differ_in_a_weight_hand_in_other_digests(swarm: Swarm) -> None:
    await swarm.coordinate()
    state = state_under(TWICE, B)
    with torch.no_grad():
        next(iter(state.parameters.values())).view(-1)[0] += 1e-3
    async with swarm.node(A, TWICE) as first, swarm.node(B, TWICE) as second:
        for checkpointer, kept in ((first, state_under(TWICE, A)), (second, state)):
            await checkpointer.keep(kept, TWICE, row(1), (), handed_in=True, copied=False, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
    assert len({share.digest for _, share, _ in swarm.handed_in}) == 2


async def test_a_coordinator_that_is_away_is_given_the_checkpoint_when_it_is_back(swarm: Swarm) -> None:
    async with swarm.node(A, TWICE) as checkpointer:
        await checkpointer.keep(state_under(TWICE, A), TWICE, row(1), (), handed_in=True, copied=False, last=False)
        for _ in range(2):
            assert await asyncio.wait_for(swarm.plane(A).unreached.get(), 30) == "owner"
            assert not checkpointer.is_idle
        await swarm.coordinate()
        await asyncio.wait_for(checkpointer.settled(), 30)
        assert checkpointer.is_idle
        assert len(swarm.handed_in) == 1


async def test_a_checkpoint_that_nobody_confirms_is_handed_in_again(swarm: Swarm) -> None:
    """A coordinator that was killed before the others had handed in has forgotten it."""
    await swarm.coordinate()
    async with swarm.node(A, TWICE, confirm_seconds=0.01) as checkpointer:
        await checkpointer.keep(state_under(TWICE, A), TWICE, row(1), (), handed_in=True, copied=False, last=False)
        for _ in range(3):
            assert (await asyncio.wait_for(swarm.taken.get(), 30)).step == 1


async def test_snapshots_wait_until_the_swarm_has_an_earlier_one_whole(swarm: Swarm) -> None:
    """Else a disk would fill while copies do not get away; checkpoints are written all the same."""
    await swarm.coordinate()
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)

        async def keep_at(step: int, *, handed_in: bool) -> list[int]:
            if step > 1:
                train(state, step)
            await checkpointer.keep(state, ALONE, row(step), (), handed_in=handed_in, copied=True, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
            return [holding.mark.step for holding in checkpointer.snapshots.holdings()]

        for step in range(1, UNSAFE_FILES + 1):
            await keep_at(step, handed_in=False)
        full = list(range(1, UNSAFE_FILES + 1))
        assert await keep_at(UNSAFE_FILES + 1, handed_in=False) == full
        assert await keep_at(UNSAFE_FILES + 2, handed_in=True) == [*full, UNSAFE_FILES + 2]
        checkpointer.confirm(0, at(UNSAFE_FILES))
        assert checkpointer.safe == at(UNSAFE_FILES)
        assert await keep_at(UNSAFE_FILES + 3, handed_in=False) == [UNSAFE_FILES, UNSAFE_FILES + 2, UNSAFE_FILES + 3]
        checkpointer.confirm(0, at(1))  # which comes late
        assert checkpointer.safe == at(UNSAFE_FILES)


async def test_a_full_disk_costs_the_snapshot_and_training_goes_on(swarm: Swarm) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        with full_disk(100):
            await checkpointer.keep(state, ALONE, row(1), (), handed_in=True, copied=True, last=False)
            await asyncio.wait_for(checkpointer.settled(), 30)
        assert (checkpointer.snapshots.holdings(), swarm.files(A)) == ([], [])
        train(state, 2)
        await checkpointer.keep(state, ALONE, row(2), (), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        assert [holding.mark for holding in checkpointer.snapshots.holdings()] == [at(2)]


async def test_what_is_saved_at_the_end_is_there_in_the_next_life(swarm: Swarm, tmp_path: Path) -> None:
    state = state_under(ALONE, B)
    async with swarm.node(B, ALONE) as checkpointer:
        await checkpointer.save(state, (row(1),))
    snapshots = Snapshots(tmp_path / B)
    snapshots.load()
    votes = (vote_on("b", at(1), STAGES[1], digest_of(state)),)
    assert snapshots.holdings() == [Holding(mark=at(1), layers=STAGES[1], commit=said(at(1)), votes=votes)]
    assert list(snapshots.rows()) == [row(1)]
    assert snapshots.of(at(1)).keys() == now(state).keys()


async def test_what_is_on_the_disk_already_is_not_saved_again(swarm: Swarm, tmp_path: Path) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (row(1),), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        (path,) = (tmp_path / A).glob("*.safetensors")
        before = path.stat().st_ino
        await checkpointer.save(state, ())
        assert path.stat().st_ino == before
        assert list(checkpointer.snapshots.rows()) == [row(1)]


async def test_what_cannot_be_saved_at_the_end_keeps_nobody_from_ending(swarm: Swarm) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        with full_disk(100):
            await checkpointer.save(state_under(ALONE, A), ())
    assert swarm.files(A) == []


async def test_while_a_checkpoint_waits_for_the_coordinator_a_further_snapshot_does_not_end_the_waiting(
    swarm: Swarm,
) -> None:
    """Else a run that is parked would be left before its checkpoint is with the coordinator."""
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=True, copied=False, last=False)
        await asyncio.wait_for(swarm.plane(A).unreached.get(), 30)
        train(state, 2)
        await checkpointer.keep(state, ALONE, row(2), (), handed_in=False, copied=True, last=False)
        await until_there(checkpointer.snapshots, at(2))
        assert await asyncio.wait_for(swarm.plane(A).unreached.get(), 30)
        assert not checkpointer.is_idle
        await swarm.coordinate()
        await asyncio.wait_for(checkpointer.settled(), 30)
        assert [share.step for _, share, _ in swarm.handed_in] == [1]


async def test_a_matrix_that_both_ends_hold_is_written_by_the_first_one(swarm: Swarm) -> None:
    state = state_of("last", tied=True)
    plan = Plan(version=1, stages=((0, 2), (2, 5)), routes=((A, B),) * 4, shadows=(B, A), author="owner")
    Neighbours(state)
    train(state, 1)
    await swarm.coordinate()
    async with swarm.node(B, plan) as checkpointer:
        await checkpointer.keep(state, plan, row(1), (), handed_in=True, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        written = checkpointer.snapshots.of(at(1)).keys()
    assert state.gradients.shared
    (vote,) = checkpointer.snapshots.votes_on(at(1), state.layers)
    assert {key.partition("/")[2] for key in now(state).keys() - written} == state.gradients.shared
    assert vote.digest == digest_of(state, leave_out=state.gradients.shared)
    assert {key.partition("/")[2] for key in written} == kept_names(state.config, state.layers)


class BrokenSnapshots(Snapshots):
    """A list of snapshots with a bug."""

    def add(self, snapshot: Snapshot) -> None:
        raise RuntimeError(f"a bug, with {snapshot.stem}")


class BrokenUplink(UplinkPacer):
    """A line with a bug."""

    async def idle(self, peer: str) -> None:
        raise RuntimeError(f"a bug, with {peer}")


@pytest.mark.parametrize("where", ["the writer", "the copies", "the upload"])
async def test_an_error_that_nobody_expects_ends_the_keeping_and_is_seen(
    swarm: Swarm, tmp_path: Path, where: str
) -> None:
    """Else it would be waited for for ever what nobody does any more."""
    await swarm.coordinate()
    snapshots = BrokenSnapshots(tmp_path / A) if where == "the writer" else None
    uplink = BrokenUplink() if where != "the writer" else None
    upload = where == "the upload"

    async def train_on() -> None:
        async with swarm.node(Z, ALONE), swarm.node(A, ALONE, snapshots=snapshots, uplink=uplink) as checkpointer:
            state = state_under(ALONE, A)
            await checkpointer.keep(state, ALONE, row(1), (), handed_in=upload, copied=not upload, last=False)
            await checkpointer.settled()
            await asyncio.Event().wait()  # as the daemon does until its job is done

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(train_on(), 30)
    bugs = caught.value.subgroup(lambda error: isinstance(error, RuntimeError) and "a bug, with" in str(error))
    assert bugs is not None
    assert caught.value.subgroup(lambda error: isinstance(error, TimeoutError)) is None
