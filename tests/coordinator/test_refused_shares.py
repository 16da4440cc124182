"""Shares of checkpoints that a coordinator does not take, and how little of them lies on its disk."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.records.checkpoint_collector import DRAFTS_A_PEER
from dtfm_protocol.identity.keys import short
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.wire.stream import StreamClosed, write_message
from tests.coordinator.handed_in_shares import OWNER, PLAN, A, B, Swarm, X, Y, share_of


@pytest.mark.parametrize(
    ("peer", "change"),
    [
        ("stranger", {}),
        (A, {"stage": 1}),
        (Y, {"stage": 0}),
        (A, {"plan_version": 2}),
        (A, {"plan_version": 4}),
        (A, {"stage": 7}),
    ],
)
async def test_what_is_not_from_a_stage_of_the_plan_in_force_is_not_taken(
    tmp_path: Path, peer: str, change: dict[str, Any]
) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    share, data = share_of(peer)
    receipt = await swarm.hand_in(peer, share.model_copy(update=change), data)
    assert not receipt.taken
    assert "no such stage" in receipt.text
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_before_there_is_a_plan_nothing_is_taken(tmp_path: Path) -> None:
    """A coordinator that has just returned gives no answer, so that the peer keeps its share and tries again."""
    swarm = Swarm(tmp_path, plan=None)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, *share_of(A))
    swarm.archive.expect(PLAN)
    await swarm.give(A, B, X, Y)
    assert swarm.store.steps() == [50]


async def test_a_refusal_reaches_its_peer_also_when_the_file_is_large(tmp_path: Path) -> None:
    """Else a node offers the checkpoint of a plan that is over again and again, and waits for an answer for ever."""
    swarm = Swarm(tmp_path)
    share, data = share_of(A, data=bytes(5 << 20), plan_version=2)
    assert not (await swarm.hand_in(A, share, data)).taken


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "0" * 64}, f"the file of stage 0 from {short(A)} has another hash"),
        ({"sha256": None}, f"the file of stage 0 from {short(A)} has another hash"),
        ({"size": 1 << 50}, f"{short(A)} offers {1 << 50} bytes for a stage"),
    ],
)
async def test_a_file_that_is_not_what_it_says_is_refused_and_leaves_nothing(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    share, data = share_of(A)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, share.model_copy(update=change), data)
    assert swarm.refused == [said]
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_a_file_that_breaks_off_is_not_counted_and_may_come_again(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    share, data = share_of(A)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    taking = asyncio.create_task(swarm.archive.take(at_owner))
    await write_message(ours, share)
    await ours.write(data[:-1])
    await ours.close()
    with pytest.raises(StreamClosed):
        await taking
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


async def test_what_is_no_safetensors_file_does_not_become_a_checkpoint(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y)
    with pytest.raises(StreamClosed):
        await swarm.hand_in(A, *share_of(A, data=b"no safetensors file"))
    assert "is not a safetensors file" in swarm.refused[0]
    assert swarm.store.steps() == []
    await swarm.give(A)
    assert swarm.store.steps() == [50]


def on_disk(folder: Path) -> int:
    """Bytes of all that lies there."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("steps", [range(1, 91), range(90, 0, -1)], ids=["upwards", "downwards"])
async def test_a_peer_that_hands_in_every_step_fills_no_disk_and_holds_nothing_up(tmp_path: Path, steps: range) -> None:
    swarm = Swarm(tmp_path)
    for step in steps:
        await swarm.hand_in(A, *share_of(A, step=step))
        assert len(list(tmp_path.iterdir())) <= DRAFTS_A_PEER
    assert on_disk(tmp_path) <= 2 * len(share_of(A)[1])
    await swarm.give(X, step=50)
    await swarm.give(B, step=50)
    await swarm.give(Y, step=50)
    assert swarm.kept == []  # it waits for whoever went on without it, as for anybody who is slow
    swarm.archive.expect(PLAN.model_copy(update={"version": 4}))
    assert list(tmp_path.iterdir()) == []


async def test_all_peers_that_hand_in_every_step_leave_no_more_than_each_its_own(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    for step in range(1, 91):
        for place, peer in enumerate((A, B, X)):
            await swarm.hand_in(peer, *share_of(peer, step=1 + (step + 30 * place) % 90))
    assert len(list(tmp_path.iterdir())) <= 3 * DRAFTS_A_PEER


async def test_what_a_peer_has_gone_past_counts_no_more_and_may_be_handed_in_by_the_others(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.give(B, X, Y, step=10)
    await swarm.give(A, step=20)
    await swarm.give(A, step=30)
    receipt = await swarm.hand_in(A, *share_of(A, step=10))
    assert (receipt.taken, receipt.text) == (False, "newer ones of this peer wait for the others")
    await swarm.give(B, X, Y, step=30)
    assert [manifest.step for manifest in swarm.kept] == [30]


@pytest.mark.parametrize(
    ("peer", "change", "why"),
    [
        (B, {"data": b"another file"}, "the file comes from the first replica of the stage"),
        (A, {"data": b""}, "the file comes from the first replica of the stage"),
        (A, {"step": 91}, "the job has no such step"),
        (A, {"step": (1 << 32) - 1}, "the job has no such step"),
    ],
)
async def test_what_no_honest_peer_hands_in_is_not_written(
    tmp_path: Path, peer: str, change: dict[str, Any], why: str
) -> None:
    """A replica could write its own file over the one that the digests are of."""
    swarm = Swarm(tmp_path)
    receipt = await swarm.hand_in(peer, *share_of(peer, **change))
    assert (receipt.taken, receipt.text) == (False, why)
    assert not tmp_path.exists() or list(tmp_path.iterdir()) == []


async def test_a_peer_sends_one_file_at_a_time(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    share, data = share_of(A)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    taking = asyncio.create_task(swarm.archive.take(at_owner))
    await write_message(ours, share)
    await ours.write(data[:-1])
    for _ in range(10):
        await asyncio.sleep(0)
    receipt = await swarm.hand_in(A, *share_of(A, step=60))
    assert (receipt.taken, receipt.text) == (False, "another file of this peer is on its way")
    await ours.close()
    with pytest.raises(StreamClosed):
        await taking
    await swarm.give(A, B, X, Y)
    assert swarm.store.steps() == [50]
