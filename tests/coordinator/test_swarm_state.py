"""Waits for what a coordinator hears: it wakes those who wait for it, and ends work that has become pointless."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.coordinator.peers import Peers


def never() -> bool:
    return False


class Work:
    """Something that goes on until a test ends it."""

    def __init__(self) -> None:
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun = self.cancelled = False

    async def run(self) -> None:
        self.begun = True
        try:
            await self.end
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def is_here(peers: Peers, peer: str) -> Callable[[], bool]:
    return lambda: peer in [member.peer for member in peers.state.members.online()]


async def turns(count: int = 10) -> None:
    """Let all go on who can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_work_is_done_where_nothing_comes_between(tmp_path: Path) -> None:
    peers, work = Peers(tmp_path), Work()
    doing = asyncio.create_task(peers.state.unless(never, work.run()))
    await turns()
    assert work.begun
    assert not doing.done()
    work.end.set_result(None)
    assert await asyncio.wait_for(doing, 30)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_is_given_up_once_something_that_is_heard_makes_the_condition_true(tmp_path: Path) -> None:
    peers, work = Peers(tmp_path), Work()
    doing = asyncio.create_task(peers.state.unless(is_here(peers, "b"), work.run()))
    await peers.hello("a")
    await turns()
    assert not doing.done()
    await peers.hello("b")
    assert not await asyncio.wait_for(doing, 30)
    assert work.cancelled
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_is_given_up_at_once_where_the_condition_is_true_already(tmp_path: Path) -> None:
    peers, work = Peers(tmp_path), Work()
    assert not await asyncio.wait_for(peers.state.unless(lambda: True, work.run()), 30)
    assert work.cancelled


async def test_work_that_is_done_in_the_same_moment_counts_as_done(tmp_path: Path) -> None:
    peers, work = Peers(tmp_path), Work()
    doing = asyncio.create_task(peers.state.unless(is_here(peers, "a"), work.run()))
    await turns()
    work.end.set_result(None)
    await peers.hello("a")
    assert await asyncio.wait_for(doing, 30)


async def test_what_goes_wrong_in_the_work_is_raised(tmp_path: Path) -> None:
    peers, work = Peers(tmp_path), Work()
    doing = asyncio.create_task(peers.state.unless(never, work.run()))
    await turns()
    work.end.set_exception(OSError("no such host"))
    with pytest.raises(OSError, match="no such host"):
        await asyncio.wait_for(doing, 30)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_condition_that_raises_gives_the_work_up(tmp_path: Path) -> None:
    peers, work = Peers(tmp_path), Work()

    def broken() -> bool:
        if is_here(peers, "a")():
            raise ValueError("what is this?")
        return False

    doing = asyncio.create_task(peers.state.unless(broken, work.run()))
    await turns()
    assert not doing.done()
    await peers.hello("a")
    assert not await asyncio.wait_for(doing, 30)
    assert work.cancelled


async def test_who_is_cancelled_takes_the_work_along(tmp_path: Path) -> None:
    peers, work = Peers(tmp_path), Work()
    doing = asyncio.create_task(peers.state.unless(never, work.run()))
    await turns()
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert work.cancelled
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_wait_without_a_limit_ends_when_something_heard_makes_its_condition_true(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    waiting = asyncio.create_task(peers.state.wait(is_here(peers, "b")))
    await peers.hello("a")
    await turns()
    assert not waiting.done()
    await peers.report("b")
    assert await asyncio.wait_for(waiting, 30)


async def test_a_wait_for_what_is_true_already_is_over_at_once(tmp_path: Path) -> None:
    assert await asyncio.wait_for(Peers(tmp_path).state.wait(lambda: True), 30)


async def test_a_wait_with_a_limit_ends_without_what_it_waited_for(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    waiting = asyncio.create_task(peers.state.wait(is_here(peers, "b"), 0.05))
    await peers.hello("a")
    assert not await asyncio.wait_for(waiting, 30)


async def test_a_wait_with_a_limit_ends_before_it_with_what_it_waited_for(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    waiting = asyncio.create_task(peers.state.wait(is_here(peers, "a"), 3600.0))
    await turns()
    await peers.hello("a")
    assert await asyncio.wait_for(waiting, 30)


async def test_what_has_come_true_unheard_counts_when_the_time_is_up(tmp_path: Path) -> None:
    answers = iter([False, True])
    assert await asyncio.wait_for(Peers(tmp_path).state.wait(lambda: next(answers), 0.01), 30)


async def test_all_who_wait_are_woken_by_the_same_word(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    waiting = [asyncio.create_task(peers.state.wait(is_here(peers, "a"))) for _ in range(3)]
    await turns()
    await peers.hello("a")
    assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [True] * 3
