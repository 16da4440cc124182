"""A share of a checkpoint is handed in until the coordinator has said that the checkpoint is whole."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.checkpoint_upload import CheckpointShare, CheckpointUpload
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, HandIn, Receipt
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream, read_message, write_message


def share(step: int) -> CheckpointShare:
    """The vote of a replica that sends no file."""
    message = HandIn(step=step, plan_version=1, stage=0, digest="0" * 64, eval_loss=None, size=0, sha256=None)
    return CheckpointShare("owner", message, None)


class Coordinator:
    """Takes shares, unless it says that it has them."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.steps: list[int] = []
        self.takes = True
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def serve(self) -> None:
        async def take(stream: Stream) -> None:
            self.steps.append((await read_message(stream, HandIn)).step)
            await self.may_answer.wait()
            await write_message(stream, Receipt(taken=self.takes, text="heard"))

        await MemoryDataPlane(self.network, "owner").serve(CHECKPOINT, take)

    @contextlib.asynccontextmanager
    async def upload(self) -> AsyncIterator[CheckpointUpload]:
        """A node's upload, whose own timer never comes."""
        upload = CheckpointUpload(
            MemoryDataPlane(self.network, "a"), UplinkPacer(), retry_seconds=0.0, confirm_seconds=1000.0
        )
        running = asyncio.create_task(upload.run())
        try:
            yield upload
        finally:
            running.cancel()
            await asyncio.wait({running})


@pytest.fixture
async def coordinator() -> Coordinator:
    found = Coordinator()
    await found.serve()
    return found


async def rest() -> None:
    """Let everything be done that needs no waiting: all of a hand-in on a network in memory."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("confirmed", "handed_in"), [(None, [1, 1]), (0, [1, 1]), (1, [1]), (2, [1])])
async def test_what_is_confirmed_is_not_handed_in_again(
    coordinator: Coordinator, confirmed: int | None, handed_in: list[int]
) -> None:
    async with coordinator.upload() as upload:
        upload.put(share(1))
        await asyncio.wait_for(upload.settled(), 30)
        if confirmed is not None:
            upload.confirm(confirmed)
        upload.repeat()
        assert upload.is_idle  # who waits for it to be handed in does not wait for it a second time
        await rest()
        assert coordinator.steps == handed_in


async def test_what_was_not_taken_is_not_handed_in_again(coordinator: Coordinator) -> None:
    coordinator.takes = False
    async with coordinator.upload() as upload:
        upload.put(share(1))
        await asyncio.wait_for(upload.settled(), 30)
        upload.repeat()
        await rest()
        assert coordinator.steps == [1]


async def test_a_newer_share_takes_the_place_of_one_that_waits(coordinator: Coordinator) -> None:
    async with coordinator.upload() as upload:
        upload.put(share(1))
        upload.put(share(2))
        await asyncio.wait_for(upload.settled(), 30)
        assert coordinator.steps == [2]


async def test_a_share_that_comes_while_another_is_answered_is_handed_in_too(coordinator: Coordinator) -> None:
    coordinator.may_answer.clear()
    async with coordinator.upload() as upload:
        upload.put(share(1))
        await rest()
        upload.put(share(2))
        coordinator.may_answer.set()
        await asyncio.wait_for(upload.settled(), 30)
        assert coordinator.steps == [1, 2]
        upload.repeat()
        await rest()
        assert coordinator.steps == [1, 2, 2]
