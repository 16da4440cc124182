"""A state is written beside training; however the writing ends, no update waits for it for ever."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dtfm_node.engine.runtime import Compute, on_thread
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.state.disk_budget import DiskBudget
from dtfm_node.state.snapshot_writer import Extract, SnapshotWriter, SnapshotWritten
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.state_vote import StateVote
from tests.harness.disks import full_disk
from tests.harness.named_peers import signer_of
from tests.node.test_training_stage import one_thread, state_of

__all__ = ["one_thread"]  # a fixture

MARK = Mark(step=7, plan=2)


def a_state() -> tuple[TrainingStage, Extract]:
    """A state, and all of it as what is due."""
    state = state_of("middle")
    state.settle(MARK, None)
    tensors = dict(state_tensors(state.parameters, state.optimizer))
    return state, Extract(MARK, state.layers, state.commit, (), tensors, tensors, frozenset(tensors))


def may_update(state: TrainingStage) -> bool:
    """Whether an update of `state` need not wait."""
    update = threading.Thread(target=state.before_update, daemon=True)
    update.start()
    update.join(5)
    return not update.is_alive()


def writer_on(
    disk: Compute, folder: Path, tasks: asyncio.TaskGroup, snapshots: Snapshots | None = None
) -> SnapshotWriter:
    """A writer of states of which an update copies nothing."""
    voter = partial(StateVote.made, signer_of("a"))
    return SnapshotWriter(snapshots or Snapshots(folder), disk, tasks, voter, copy_bytes=0, retry_seconds=0.0)


async def broken(*_: Any) -> Any:
    raise RuntimeError("a bug")


async def stuck(*_: Any) -> Any:
    await asyncio.Event().wait()


def fail(_: SnapshotWritten) -> None:
    pytest.fail("nothing was written")


async def test_an_error_that_nobody_expects_is_its_owners_and_holds_up_no_update(tmp_path: Path) -> None:
    state, extract = a_state()
    writers: list[SnapshotWriter] = []

    async def write() -> None:
        async with asyncio.TaskGroup() as tasks:
            writers.append(writer_on(broken, tmp_path, tasks))
            writers[0].begin(state, extract, last=True, then=fail)
            assert writers[0].is_writing
            await writers[0].written()

    with pytest.raises(ExceptionGroup, match="TaskGroup") as caught:
        await asyncio.wait_for(write(), 30)
    assert [str(error) for error in caught.value.exceptions] == ["a bug"]
    assert not writers[0].is_writing
    assert may_update(state)


@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_given_up_holds_up_no_update(tmp_path: Path, begun: bool) -> None:
    state, extract = a_state()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        writer = writer_on(stuck, tmp_path, tasks)
        writer.begin(state, extract, last=False, then=fail)
        if begun:
            await asyncio.sleep(0)
        writer.cancel()
        await writer.written()
    assert may_update(state)


async def test_while_a_state_is_written_its_update_waits(tmp_path: Path) -> None:
    state, extract = a_state()
    updated, go_on = threading.Event(), asyncio.Event()
    found: list[SnapshotWritten] = []

    async def disk(function: Callable[..., Any], *arguments: Any) -> Any:
        await go_on.wait()
        return await asyncio.to_thread(function, *arguments)

    def update() -> None:
        state.before_update()
        updated.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        writer = writer_on(disk, tmp_path, tasks)
        writer.begin(state, extract, last=False, then=found.append)
        waiting = threading.Thread(target=update, daemon=True)
        waiting.start()
        assert not updated.wait(0.05)
        go_on.set()
        await writer.written()
        assert await asyncio.to_thread(updated.wait, 30)
    assert [written.hashes.keys() for written in found] == [extract.to_read.keys()]


async def test_a_last_state_is_written_once_there_is_room(tmp_path: Path) -> None:
    state, extract = a_state()
    attempts: asyncio.Queue[None] = asyncio.Queue()
    found: list[SnapshotWritten] = []
    with ThreadPoolExecutor(1) as thread:
        compute = on_thread(thread)

        async def disk(function: Callable[..., Any], *arguments: Any) -> Any:
            attempts.put_nowait(None)
            return await compute(function, *arguments)

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            writer = writer_on(disk, tmp_path, tasks)
            with full_disk(100):
                writer.begin(state, extract, last=True, then=found.append)
                for _ in range(3):
                    await attempts.get()
                assert writer.is_writing
            await writer.written()
    assert [written.snapshot.mark for written in found if written.snapshot is not None] == [MARK]
    assert may_update(state)


@pytest.mark.parametrize("last", [True, False])
async def test_older_snapshots_make_room_for_the_last_state_and_for_no_other(tmp_path: Path, last: bool) -> None:
    """Where they could not go, as the coordinator takes nothing for now, the end would never come."""
    state, extract = a_state()
    size = sum(tensor.nbytes for tensor in (extract.to_write or {}).values())
    snapshots = Snapshots(tmp_path, DiskBudget(3 * size))
    older = [replace(extract, mark=Mark(step=step, plan=2)) for step in (3, 5)]
    with ThreadPoolExecutor(1) as thread:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            writer = writer_on(on_thread(thread), tmp_path, tasks, snapshots)
            for one in (*older, extract):
                writer.begin(state, one, last=last and one is extract, then=lambda written: None)
                await writer.written()
    kept = sorted(holding.mark.step for holding in snapshots.holdings())
    assert kept == ([5, 7] if last else [3, 5])
    assert may_update(state)


async def test_without_room_a_state_that_others_follow_is_let_go(tmp_path: Path) -> None:
    state, extract = a_state()
    with ThreadPoolExecutor(1) as thread:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            writer = writer_on(on_thread(thread), tmp_path, tasks)
            with full_disk(100):
                writer.begin(state, extract, last=False, then=fail)
                await writer.written()
    assert list(tmp_path.iterdir()) == []
    assert may_update(state)


async def test_a_vote_writes_no_file(tmp_path: Path) -> None:
    state, extract = a_state()
    vote = Extract(MARK, state.layers, state.commit, (), None, extract.to_read, extract.voted)
    found: list[SnapshotWritten] = []
    with contextlib.ExitStack() as stack:
        disk = on_thread(stack.enter_context(ThreadPoolExecutor(1)))
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            writer = writer_on(disk, tmp_path, tasks)
            writer.begin(state, vote, last=False, then=found.append)
    assert [(written.snapshot, written.hashes.keys()) for written in found] == [(None, extract.to_read.keys())]
    assert list(tmp_path.iterdir()) == []
