"""Standing by: what a coordinator that does not lead writes down, and when it is its turn."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_coordinator.serve.standby import Standby
from dtfm_coordinator.serve.standby_words import StandbyView
from dtfm_protocol.control.messages import (
    EPOCH,
    JOB,
    PHASE,
    PLAN,
    PRESENCE,
    REPORT,
    Epoch,
    Phase,
    Presence,
    Report,
    Topic,
)
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from dtfm_protocol.job.amendment import Amendment
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Planning, Training
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Schema
from tests.harness.manual_clock import ManualClock
from tests.harness.membership import invite_of

SWARM = "0123456789abcdef"
FIRST, ME, STRANGER = (Identity.generate() for _ in range(3))
SECONDS, TAKEOVER = TIMEOUTS.first_look, TIMEOUTS.takeover
PATIENCE = 30.0
"""Seconds of the real clock."""
JOB_OF_ALL = ResolvedJob(
    name="tiny",
    config={},
    corpus=Corpus(dtype="uint16", vocab_size=61, shards=(Shard(sha256="0" * 64, tokens=1000),)),
    training=Training(steps=9, global_batch=8, micro_batch=2, sequence_length=8, learning_rate=1e-3),
    evaluation=Evaluation(),
    plan=Planning(),
    checkpoint=Checkpointing(),
)
CARD = StandbyCard(
    peer=ME.peer_id, certificate=authority_certificate(ME).hex(), entrance="192.0.2.2:7700", dht=("/p2p/me",)
)
INVITE = invite_of(FIRST, SWARM).model_copy(update={"standbys": (AppointedStandby.appoint(CARD, SWARM, FIRST),)})


class Heard:
    """A control plane on which a test says what is heard."""

    clock: ManualClock

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.connected.set()
        self._readers: dict[str, Callable[[str, Any], None]] = {}

    def on(self, topic: Topic, reader: Callable[[str, Any], None]) -> None:
        self._readers[topic.name] = reader

    def say(self, topic: Topic, body: Schema, by: str = FIRST.peer_id) -> None:
        self._readers[topic.name](by, body)

    def presence(self, online: bool = True, by: str = FIRST.peer_id) -> None:
        self.say(PRESENCE, Presence(online=online, session="s"), by)


def standing(folder: Path, first: bool = False) -> tuple[Heard, Standby]:
    heard: Any = Heard()
    me = FIRST if first else ME
    heard.clock = ManualClock()
    return heard, Standby(folder, me.peer_id, INVITE.coordinators, INVITE.swarm, JOB_OF_ALL, heard, heard.clock)


def plan(version: int, step: int = 0, author: Identity = FIRST) -> Plan:
    resume = Resume(mark=Mark(step=step, plan=version - 1))
    return Plan(version=version, stages=((0, 2),), routes=(("a",), ("b",)), idle=("z",), resume=resume).signed(
        author, SWARM
    )


def written(folder: Path) -> tuple[Epoch, int | None]:
    """The epoch that the coordinator would go on from, and its plan's version."""
    record = PlanRecord.model_validate_json((folder / "epoch.json").read_bytes())
    path = folder / "plan.json"
    return record.epoch, Plan.load(path).version if path.exists() else None


def row(step: int, plan_version: int) -> StepMetrics:
    return StepMetrics(
        step=step, loss=1.0, tokens=8, seconds=0.1, plan_version=plan_version, learning_rate=1e-3, grad_norm=1.0,
        predicted_seconds=None,
    )  # fmt: skip


def report(*rows: StepMetrics) -> Report:
    return Report(session="s", state="training", rows=rows)


async def lasts(heard: Heard, standby: Standby) -> float:
    """For how long it stands by."""
    begun = heard.clock.now()
    await standby.until_needed(SECONDS)
    return heard.clock.now() - begun


async def finished(heard: Heard, waiting: "asyncio.Task[float]") -> float:
    """What `lasts` gives, with as much time as it takes."""
    async with asyncio.timeout(PATIENCE):
        while not waiting.done():
            await heard.clock.advance(0.1)
    return await waiting


def stands_by(heard: Heard, standby: Standby) -> "asyncio.Task[float]":
    return asyncio.create_task(lasts(heard, standby))


async def test_where_nobody_is_heard_of_it_is_needed(tmp_path: Path) -> None:
    heard, standby = standing(tmp_path)
    assert await finished(heard, stands_by(heard, standby)) >= SECONDS
    assert not standby.followed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by", [ME, STRANGER])
async def test_neither_itself_nor_a_stranger_leads(tmp_path: Path, by: Identity) -> None:
    heard, standby = standing(tmp_path)
    heard.presence(by=by.peer_id)
    await finished(heard, stands_by(heard, standby))
    assert not standby.followed


async def test_what_one_who_has_gone_has_left_behind_is_no_sign_of_life(tmp_path: Path) -> None:
    """A broker of its own keeps it."""
    heard, standby = standing(tmp_path)
    heard.presence(online=False)
    heard.say(EPOCH, Epoch(called=3, in_force=3))
    heard.say(PLAN, plan(3))
    await finished(heard, stands_by(heard, standby))
    assert not standby.followed


async def test_while_another_one_leads_it_stands_by_and_then_waits_whether_that_one_returns(tmp_path: Path) -> None:
    heard, standby = standing(tmp_path)
    heard.presence()
    waiting = stands_by(heard, standby)
    await heard.clock.advance(2 * TAKEOVER)
    assert not waiting.done()
    heard.presence(online=False)
    await heard.clock.advance(SECONDS / 2)
    heard.presence()
    await heard.clock.advance(2 * SECONDS)
    assert not waiting.done()
    heard.presence(online=False)
    await finished(heard, waiting)
    assert standby.followed


async def test_who_cannot_be_heard_any_more_leads_no_more(tmp_path: Path) -> None:
    """Its broker may have ended with it, and nobody is left to tell."""
    heard, standby = standing(tmp_path)
    heard.presence()
    waiting = stands_by(heard, standby)
    await heard.clock.advance(2 * SECONDS)
    heard.connected.clear()
    await heard.clock.advance(TAKEOVER / 2)
    assert not waiting.done()
    assert await finished(heard, waiting) >= TAKEOVER
    assert standby.followed


async def test_the_first_coordinator_stands_by_for_one_that_has_taken_over(tmp_path: Path) -> None:
    heard, standby = standing(tmp_path, first=True)
    heard.presence(by=ME.peer_id)
    waiting = stands_by(heard, standby)
    await heard.clock.advance(2 * SECONDS)
    assert not waiting.done()
    heard.presence(online=False, by=ME.peer_id)
    await finished(heard, waiting)
    assert standby.followed


async def test_another_job_than_the_swarms_is_a_user_error(tmp_path: Path) -> None:
    heard, standby = standing(tmp_path)
    heard.presence()
    heard.say(JOB, JOB_OF_ALL)
    waiting = stands_by(heard, standby)
    await heard.clock.advance(SECONDS)
    assert not waiting.done()
    heard.say(JOB, JOB_OF_ALL.model_copy(update={"name": "another"}))
    with pytest.raises(UserError, match="the swarm trains another job: start the standby with the same job") as caught:
        await finished(heard, waiting)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", itertools.permutations(range(2)))
async def test_a_plan_and_its_epoch_are_written_down_in_whichever_order_they_come(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    heard, _ = standing(tmp_path)
    for version in (1, 2):
        epoch = Epoch(called=version, in_force=version, started=version - 1)
        said: list[tuple[Topic, Schema]] = [(PLAN, plan(version)), (EPOCH, epoch)]
        for turn in order:
            heard.say(*said[turn])
        assert written(tmp_path) == (epoch, version)


async def test_a_plan_that_is_not_in_force_yet_does_not_take_the_place_of_the_one_that_is(tmp_path: Path) -> None:
    """It may never come into force; nor is a call that was meant for another moment repeated."""
    heard, _ = standing(tmp_path)
    heard.say(PLAN, plan(1))
    heard.say(EPOCH, Epoch(called=1, in_force=1, started=1))
    heard.say(EPOCH, Epoch(called=2, in_force=1, started=1, gently=True, parked=True))
    heard.say(PLAN, plan(2))
    assert written(tmp_path) == (Epoch(called=2, in_force=1, started=1), 1)
    heard.say(EPOCH, Epoch(called=2, in_force=2, started=1))
    assert written(tmp_path) == (Epoch(called=2, in_force=2, started=1), 2)
    heard.say(PLAN, plan(1))  # an older one, which comes again
    assert written(tmp_path)[1] == 2


async def test_what_it_says_itself_it_does_not_follow(tmp_path: Path) -> None:
    heard, _ = standing(tmp_path)
    heard.say(EPOCH, Epoch(called=7), by=ME.peer_id)
    assert not (tmp_path / "epoch.json").exists()


async def test_a_plan_that_no_coordinator_has_signed_is_refused(tmp_path: Path) -> None:
    heard, _ = standing(tmp_path)
    heard.say(EPOCH, Epoch(called=3, in_force=3))
    for wrong in (plan(3, author=STRANGER), plan(3).model_copy(update={"idle": ()})):
        with pytest.raises(Refused):
            heard.say(PLAN, wrong)
    heard.say(PLAN, plan(2))
    heard.say(PLAN, plan(3))
    assert written(tmp_path)[1] == 3


async def test_what_another_broker_has_kept_from_before_takes_nothing_back(tmp_path: Path) -> None:
    heard, _ = standing(tmp_path)
    heard.say(PLAN, plan(9))
    heard.say(EPOCH, Epoch(called=9, in_force=9))
    heard.say(EPOCH, Epoch(called=5, in_force=5))
    assert written(tmp_path) == (Epoch(called=9, in_force=9), 9)


async def test_what_an_earlier_life_knew_is_not_forgotten(tmp_path: Path) -> None:
    """It may have led itself then, and nobody else may have heard of its last plan."""
    heard, _ = standing(tmp_path)
    heard.say(PLAN, plan(9))
    heard.say(EPOCH, Epoch(called=9, in_force=9))
    heard, _ = standing(tmp_path)
    heard.say(PLAN, plan(5))
    heard.say(EPOCH, Epoch(called=5, in_force=5))
    assert written(tmp_path) == (Epoch(called=9, in_force=9), 9)


async def test_the_history_is_that_of_the_plan_in_force(tmp_path: Path) -> None:
    heard, _ = standing(tmp_path)
    path = tmp_path / "metrics.jsonl"
    heard.say(REPORT, report(row(3, 1)), by="a")  # before anything is known of a plan
    assert not path.exists()
    heard.say(PLAN, plan(1))
    heard.say(EPOCH, Epoch(called=1, in_force=1))
    heard.say(REPORT, report(row(3, 1), row(4, 1)), by="a")  # what was before, nobody tells any more
    heard.say(REPORT, report(row(4, 1), row(5, 1)), by="b")
    heard.say(REPORT, report(row(6, 1)), by="z")  # who does not train under it
    heard.say(REPORT, report(row(6, 2)), by="a")
    assert [found.step for found in MetricsFile(path).rows()] == [3, 4, 5]
    heard.say(PLAN, plan(2, step=4))
    heard.say(EPOCH, Epoch(called=2, in_force=2))
    assert [found.step for found in MetricsFile(path).rows()] == [3, 4]
    heard.say(REPORT, report(row(5, 1)), by="a")  # of the plan that is over
    heard.say(REPORT, report(row(5, 2)), by="b")
    assert MetricsFile(path).rows() == [row(3, 1), row(4, 1), row(5, 2)]


async def test_a_run_that_was_paused_stays_so_under_whoever_takes_over_until_it_was_resumed(tmp_path: Path) -> None:
    heard, standby = standing(tmp_path)
    for paused in (True, True, False):
        heard.say(PHASE, Phase(name="waiting", text="paused by the owner after step 7", paused=paused))
        standby.keep_paused()
        assert WishFile(tmp_path).wishes.is_paused == paused
    assert len((tmp_path / "wishes.jsonl").read_text().splitlines()) == 2
    heard.say(PHASE, Phase(name="waiting", text="its own", paused=True), ME.peer_id)
    standby.keep_paused()
    assert not WishFile(tmp_path).wishes.is_paused


async def test_steps_that_the_job_was_given_later_are_recorded_too(tmp_path: Path) -> None:
    heard, standby = standing(tmp_path)
    amendments = (Amendment(number=1, from_step=9, values={"training.steps": 11}),)
    longer = plan(3, step=8).model_copy(update={"amendments": amendments}).signed(FIRST, SWARM)
    heard.say(PLAN, longer)
    heard.say(EPOCH, Epoch(called=3, in_force=3))
    heard.say(REPORT, report(*(row(step, 3) for step in range(9, 13))), by="a")
    assert [one.step for one in MetricsFile(tmp_path / "metrics.jsonl").rows()] == [9, 10, 11]
    heard.say(PLAN, plan(4).model_copy(update={"amendments": (amendments[0],) * 2}).signed(FIRST, SWARM))
    heard.say(REPORT, report(row(12, 4)), by="a")
    with pytest.raises(UserError, match="cannot follow"):
        await standby.until_needed(SECONDS)


async def test_how_far_behind_it_is_is_told_meanwhile(tmp_path: Path) -> None:
    """Of rows, it writes down those that continue its own."""
    heard, standby = standing(tmp_path)
    heard.presence()
    heard.say(PLAN, plan(1))
    heard.say(EPOCH, Epoch(called=1, in_force=1))
    heard.say(REPORT, report(row(1, 1), row(2, 1)), by="a")
    heard.say(REPORT, report().model_copy(update={"step": 5}), by="b")
    views: list[StandbyView] = []

    def tell(view: StandbyView) -> None:
        views.append(view)
        if len(views) == 3:
            heard.presence(online=False)

    waiting = asyncio.create_task(standby.until_needed(SECONDS, tell))
    async with asyncio.timeout(PATIENCE):
        while not waiting.done():
            await heard.clock.advance(0.1)
    assert (views[0].leader, views[0].takes_over_in) == (FIRST.peer_id, None)
    assert (views[0].step, views[0].heard_step, views[0].plan_version) == (2, 5, 1)
    assert views[-1].leader == ""
    assert views[-1].takes_over_in is not None
    assert views[-1].takes_over_in <= 1.0
