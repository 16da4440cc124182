"""Copies of a lone stage's state with its shadow: what is taken, from whom, and how much of it."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dtfm_node.state.disk_budget import DiskBudget
from dtfm_node.state.shadow_replication import COPIES_A_STAGE
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.shard import encode_shard
from dtfm_protocol.checkpoint.transfers import SHADOW, Deposit, Receipt, deposit
from dtfm_protocol.plan.peer_state import Holding, Mark
from dtfm_protocol.plan.plan import Resume
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.wire.stream import StreamClosed, read_message, write_message
from tests.harness.disks import full_disk
from tests.harness.named_peers import vote_on
from tests.node.finals import final
from tests.node.keeping_nodes import (
    ALONE,
    LIMIT,
    STAGES,
    STRANGER,
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
    vote_on_file,
)
from tests.node.test_training_stage import one_thread

__all__ = ["one_thread", "swarm"]  # fixtures


def offered(data: bytes) -> Deposit:
    """An offer of a file with another hash."""
    votes = (vote_on_file("a", data, at(7), STAGES[0]),)
    return Deposit(
        plan_version=1, mark=at(7), layers=STAGES[0], size=len(data), sha256="0" * 64, commit=said(at(7)), votes=votes
    )


async def test_a_stage_of_one_peer_leaves_a_copy_with_its_shadow(swarm: Swarm, tmp_path: Path) -> None:
    async with swarm.node(A, ALONE) as checkpointer, swarm.node(Z, ALONE) as shadow:
        told: list[int] = []
        shadow.snapshots.when_added(lambda: told.append(len(shadow.snapshots.holdings())))
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await until_there(shadow.snapshots, at(1))
        await swarm.answered()
        votes = (vote_on("a", at(1), STAGES[0], digest_of(state)),)
        held = [Holding(mark=at(1), layers=STAGES[0], commit=said(at(1)), votes=votes)]
        assert checkpointer.snapshots.holdings() == held
        assert shadow.snapshots.holdings() == held
        assert told == [1]
        (path,) = (tmp_path / Z).glob("*.safetensors")
        assert same(load_file(path), now(state))
        assert checkpointer.shadows.copied_bytes == path.stat().st_size
    again = Snapshots(tmp_path / Z)
    again.load()
    assert again.holdings() == held


async def test_a_shadow_that_is_away_costs_the_copy_and_nothing_else(swarm: Swarm) -> None:
    async with swarm.node(A, ALONE) as checkpointer:
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(checkpointer.settled(), 30)
        async with swarm.node(Z, ALONE) as shadow:
            train(state, 2)
            await checkpointer.keep(state, ALONE, row(2), (), handed_in=False, copied=True, last=False)
            await until_there(shadow.snapshots, at(2))
            assert [holding.mark for holding in shadow.snapshots.holdings()] == [at(2)]


async def test_a_strangers_copy_is_not_taken(swarm: Swarm) -> None:
    """Nor one of a peer of which this one is no shadow."""
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        for peer in (STRANGER, Z):
            receipt = await swarm.offer(peer, data)
            assert (receipt.taken, receipt.text) == (False, "this peer is no shadow of that one")
        shadow.serve(ALONE.model_copy(update={"shadows": (None, Z)}))
        assert not (await swarm.offer(A, data)).taken
        assert (await swarm.offer(B, data)).taken
    assert len(swarm.files(Z)) == 2


async def test_before_there_is_a_plan_no_copy_is_taken(swarm: Swarm) -> None:
    async with swarm.node(Z):
        assert not (await swarm.offer(A, b"")).taken
    assert swarm.files(Z) == []


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (0, 5)},
        {"layers": (2, 5)},
        {"size": LIMIT + 1},
        {"sha256": "0" * 64},
        {"votes": ()},
        {"votes": (vote_on("a", at(7), STAGES[0], "f" * 64),)},
        {"votes": (vote_on("b", at(7), STAGES[0], "f" * 64),)},
        {"votes": (vote_on("a", at(8), STAGES[0], "f" * 64),)},
        {"votes": (vote_on("b", at(7), STAGES[0], "f" * 64).model_copy(update={"peer": A}),)},
    ],
    ids=[
        *("all layers", "another stage's", "too large", "another hash", "no vote", "not what was signed"),
        *("another's vote", "a vote on another step", "another's signature"),
    ],
)
async def test_a_copy_that_is_not_what_belongs_to_its_peer_leaves_nothing(swarm: Swarm, change: dict[str, Any]) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        with pytest.raises(StreamClosed):
            await swarm.offer(A, data, **change)
        assert shadow.snapshots.holdings() == []
        assert swarm.files(Z) == []
        assert (await swarm.offer(A, data)).taken


LEADS_NOWHERE = "that state leads nowhere, or this peer kept no copies of it"
LATER = ALONE.model_copy(
    update={"version": 2, "resume": Resume(mark=at(5)), "lineage": ALONE.chain.plans, "shadows": (None, Z)}
)
"""A plan that goes on from the fifth step of the other one, and has `z` keep copies of the second stage alone."""


@pytest.mark.parametrize(
    ("mark", "why"),
    [(at(6), LEADS_NOWHERE), (at(6, plan=3), LEADS_NOWHERE), (at(0), LEADS_NOWHERE), (at(4), ""), (at(6, plan=2), "")],
    ids=["after its plan's end", "of no plan", "of no step", "of the plan before", "of the plan in force"],
)
async def test_a_shadow_keeps_copies_only_of_states_along_the_chain_of_plans(
    swarm: Swarm, mark: Mark, why: str
) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, LATER) as shadow:
        receipt = await swarm.offer(B, data, mark=mark)
        assert (receipt.taken, receipt.text) == ((False, why) if why else (True, "kept"))
        assert bool(shadow.snapshots.holdings()) is receipt.taken


@pytest.mark.parametrize("commit", [None, final(at(6, 2)), said(at(7, 2)), said(at(6, 1))])
async def test_a_copy_without_the_arbiters_commit_is_not_kept(swarm: Swarm, commit: SignedCommit | None) -> None:
    """Nobody could go on from it; and with a false norm others would apply the step wrongly."""
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, LATER):
        with pytest.raises(StreamClosed):
            await swarm.offer(B, data, mark=at(6, 2), commit=commit)
        assert (await swarm.offer(B, data, mark=at(4), commit=None)).taken, "how far that plan went is signed"
    assert len(swarm.files(Z)) == 2


async def test_what_is_no_safetensors_file_leaves_nothing(swarm: Swarm) -> None:
    async with swarm.node(Z, ALONE):
        with pytest.raises(StreamClosed):
            await swarm.offer(A, b"no safetensors file")
    assert swarm.files(Z) == []


async def test_a_copy_that_is_here_is_not_sent_again(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE):
        assert (await swarm.offer(A, data)).taken
        receipt = await swarm.offer(A, data)
        assert (receipt.taken, receipt.text) == (False, "it is here already")


async def test_a_copy_that_breaks_off_leaves_nothing_and_may_come_again(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        stream = await swarm.plane(A).open(Z, SHADOW)
        offer = offered(data)
        await write_message(stream, offer)
        assert (await read_message(stream, Receipt)).taken
        await stream.write(data[:10])
        await stream.close()
        await swarm.answered()
        assert (shadow.snapshots.holdings(), swarm.files(Z)) == ([], [])
        assert (await swarm.offer(A, data)).taken


async def test_a_peer_that_leaves_a_copy_of_every_step_fills_no_disk(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE) as shadow:
        assert (await swarm.offer(B, data, layers=STAGES[1])).taken
        for step in (*range(1, 91), (1 << 32) - 1):
            await swarm.offer(A, data, mark=at(step))
        kept = [holding.mark.step for holding in shadow.snapshots.holdings() if holding.layers == STAGES[0]]
        assert sorted(kept) == [*range(91 - COPIES_A_STAGE + 1, 91), (1 << 32) - 1]
        assert shadow.snapshots.has(at(7), STAGES[1]), "another peer's copy stays"
    assert len(swarm.files(Z)) == 2 * (COPIES_A_STAGE + 1)


async def test_a_peer_leaves_one_copy_at_a_time(swarm: Swarm) -> None:
    data = encode_shard({"weight/a": torch.ones(3)})
    async with swarm.node(Z, ALONE):
        stream = await swarm.plane(A).open(Z, SHADOW)
        await write_message(stream, offered(data))
        assert (await read_message(stream, Receipt)).taken
        receipt = await swarm.offer(A, data, mark=at(8))
        assert (receipt.taken, receipt.text) == (False, "another copy of this peer is on its way")
        await stream.close()
        await swarm.answered()
        assert (await swarm.offer(A, data, mark=at(8))).taken


async def test_a_shadow_without_room_says_so(swarm: Swarm) -> None:
    async with swarm.node(Z, ALONE):
        data = encode_shard({"weight/a": torch.ones(3000)})
        (swarm._folder / "file.safetensors").write_bytes(data)
        offer = offered(data).model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
        with full_disk(1000):
            receipt = await deposit(swarm.plane(A), Z, offer, swarm._folder / "file.safetensors")
        assert (receipt.taken, receipt.text) == (False, "no room")
    assert swarm.files(Z) == []


async def test_copies_and_snapshots_that_the_budget_of_disk_has_no_room_for_are_not_begun(
    swarm: Swarm, tmp_path: Path
) -> None:
    """A shadow says so before anything is sent; a peer trains on without a snapshot, and its update waits for none."""
    small = Snapshots(tmp_path / Z, DiskBudget(1000))
    async with (
        swarm.node(Z, ALONE, snapshots=small),
        swarm.node(A, ALONE, snapshots=Snapshots(tmp_path / A, DiskBudget(1000))) as checkpointer,
    ):
        receipt = await swarm.offer(A, encode_shard({"weight/a": torch.ones(3000)}))
        assert (receipt.taken, receipt.text) == (False, "no room")
        assert small.budget.room == 1000
        state = state_under(ALONE, A)
        await checkpointer.keep(state, ALONE, row(1), (), handed_in=False, copied=True, last=False)
        await asyncio.wait_for(asyncio.to_thread(train, state, 2), 30)
        await checkpointer.settled()
    assert (swarm.files(A), swarm.files(Z)) == ([], [])
