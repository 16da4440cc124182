"""A peer that never hands in ends its plan, and the next one's peers make the last checkpoint whole without it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from dtfm_coordinator.faults.owed_shares import SLOWEST
from dtfm_coordinator.leader.new_layout import LayoutMaker
from dtfm_coordinator.leader.plan_watch import PlanWatch
from dtfm_coordinator.records.checkpoint_collector import mark_of
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.in_memory import MemoryStream
from dtfm_protocol.wire.stream import StreamClosed, write_message
from tests.coordinator.handed_in_shares import JOB, OWNER, A, B, Swarm, X, share_of, vote_of
from tests.coordinator.peers import Peers, plan_of
from tests.harness.manual_clock import ManualClock

PATIENCE = TIMEOUTS.checkpoint_share
LAST = JOB.training.steps
PIECE = 1 << 20


class Led(Peers):
    """Replicas a, b and x of the whole model, of which a hands in the file, and who watches over their plan."""

    def __init__(self, folder: Path) -> None:
        self.time = ManualClock()
        super().__init__(folder, clock=self.time)
        self.planner.is_forced = self.planner.is_changed = False  # type: ignore[attr-defined]
        self.folder = folder / "checkpoints"
        self.watch = PlanWatch(self.state, self.context.planner, self.time.now)
        self.starts()

    def starts(self) -> None:
        """The coordinator's process is a new one, which knows what is on its disk."""
        self.handed = Swarm(self.folder, None, self.time)
        self.state.owed = self.handed.archive.owed

    def follows(self, plan: Plan) -> None:
        """A plan is in force."""
        self.state.plan = plan
        self.handed.archive.expect(plan)

    @property
    def plan(self) -> Plan:
        assert self.state.plan is not None
        return self.state.plan

    async def train(self, step: int, *peers: str) -> None:
        """All, or some, say that they have come to a step."""
        for peer in peers or self.plan.peers:
            await self.report(peer, "training", plan_version=self.plan.version, step=step)

    async def give(self, *peers: str, step: int = LAST) -> None:
        made_by = plan_of(*self.plan.peers, version=self.plan.resume.mark.plan or self.plan.version)
        for peer in peers:
            votes = (vote_of(peer, step, made_by),)
            await self.handed.give(peer, step=step, plan=self.plan, votes=votes)

    async def broken(self, seconds: float) -> str:
        """Why the plan in force is over when so much time has passed, in which all have said that they are there."""
        self.time.skip(seconds)
        for peer in self.state.members.get(A), self.state.members.get(B), self.state.members.get(X):
            assert peer is not None
            assert peer.report is not None
            await self.report(peer.peer, peer.report.state, **peer.report.model_dump(include={"plan_version", "step"}))
        self.state.look_at_shares()
        return self.watch.broken(self.plan)

    async def planned(self) -> Plan:
        return await LayoutMaker(self.context, self.state, self.announcer.say, None).plan_for(self.ready())


@pytest.fixture
async def led(tmp_path: Path) -> Led:
    found = Led(tmp_path)
    await found.join(A, B, X)
    found.follows(plan_of(A, B, X))
    return found


async def test_a_silent_peer_is_left_out_and_the_last_checkpoint_is_whole_under_the_next_plan(led: Led) -> None:
    await led.train(LAST)
    await led.give(A, B)
    assert await led.broken(PATIENCE) == ""
    assert f"{short(X)} does not hand in its share" in await led.broken(1)
    layout = await led.planned()
    assert layout.peers == (A, B)
    made = Mark(step=LAST, plan=led.plan.version)
    led.follows(layout.model_copy(update={"version": 2, "resume": Resume(mark=made)}))
    await led.train(LAST)
    await led.give(A, B)
    assert [mark_of(manifest) for manifest in led.handed.kept] == [made]
    assert await led.broken(10 * PATIENCE) == ""


async def test_where_no_plan_does_without_it_a_silent_peer_takes_part_and_may_hand_in_then(led: Led) -> None:
    led.planner.needed = 3
    await led.train(LAST)
    await led.give(A, B)
    assert await led.broken(PATIENCE + 1)
    layout = await led.planned()
    assert layout.peers == (A, B, X)
    led.follows(layout.model_copy(update={"version": 2, "resume": Resume(mark=Mark(step=LAST, plan=1))}))
    await led.train(LAST)
    await led.give(A, B)
    assert await led.broken(PATIENCE + 1) == ""
    await led.give(X)
    assert [manifest.step for manifest in led.handed.kept] == [LAST]
    assert led.state.doubted == frozenset()


async def test_a_file_that_is_on_its_way_is_not_late_as_long_as_it_comes_fast_enough(led: Led) -> None:
    share, data = share_of(A, LAST, bytes(5 * PIECE), led.plan)
    await led.train(LAST)
    await led.give(B, X)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    taking = asyncio.create_task(led.handed.archive.take(at_owner))
    await write_message(ours, share)
    await ours.write(data[: 4 * PIECE])
    await led.time.advance(0)
    assert await led.broken(PATIENCE + 4 * PIECE / SLOWEST) == ""
    assert short(A) in await led.broken(1)
    await ours.close()
    with pytest.raises(StreamClosed):
        await taking


async def test_nobody_is_late_for_want_of_room_on_the_coordinators_disk(led: Led) -> None:
    await led.train(LAST)
    await led.give(B, X)
    assert await led.broken(PATIENCE) == ""
    shutil.rmtree(led.folder)
    led.folder.write_text("no room")
    share, data = share_of(A, LAST, plan=led.plan)
    at_owner, ours = MemoryStream.pair(OWNER, A)
    await write_message(ours, share)
    await ours.write(data)
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        await led.handed.archive.take(at_owner)
    assert await led.broken(PATIENCE) == ""
    assert short(A) in await led.broken(1)


async def test_after_a_restart_all_times_begin_anew_and_a_silent_peer_is_found_again(led: Led) -> None:
    await led.train(LAST)
    await led.give(A, B)
    assert await led.broken(PATIENCE) == ""
    led.starts()
    led.follows(led.plan)
    assert await led.broken(PATIENCE) == ""
    await led.give(A, B)  # as what was taken and is not whole is handed in again
    assert await led.broken(PATIENCE) == ""
    assert short(X) in await led.broken(1)


async def test_who_hands_in_what_no_one_has_come_to_falls_out_with_one_and_makes_nobody_late(led: Led) -> None:
    await led.train(10)
    await led.give(A, step=50)
    assert await led.broken(PATIENCE) == ""
    assert "which" in await led.broken(1)
    assert len(led.state.accusations.apart) == 1
    assert all(A in quarrel for quarrel in led.state.accusations.apart)
    assert led.state.doubted == frozenset()


async def test_who_denies_that_it_has_come_to_a_step_falls_out_with_one_who_hands_it_in(led: Led) -> None:
    await led.train(LAST - 1)
    await led.train(LAST, A, B)
    await led.give(A, B)
    assert await led.broken(PATIENCE + 1)
    ((one, other),) = led.state.accusations.apart
    assert X in {one, other}
    led.follows(plan_of(A, B, X, version=2))
    await led.train(LAST, A, B)
    await led.train(LAST - 1, X)
    await led.give(A, B)
    assert await led.broken(PATIENCE + 1)
    assert led.state.doubted == {X}
