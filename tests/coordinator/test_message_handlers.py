"""What is heard wakes those who wait for it, ends work that has become pointless, and is written down."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.lead.status_file import StatusFile
from dtfm_coordinator.links.link_degradation import STEPS
from dtfm_coordinator.membership.known_peers import KnownPeers
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import Role
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_coordinator.plan_change.process_liveness import ProcessLiveness
from dtfm_coordinator.records.event_log import PlanEvent, read
from dtfm_coordinator.swarm.announcer import Announcer
from dtfm_coordinator.swarm.profile_lookup import ProfileLookup
from dtfm_protocol.bounds import SEEN_LIMIT
from dtfm_protocol.control.messages import CHALLENGE, Answers, Challenge, Ledger
from dtfm_protocol.discovery.records import Link, LinkReport
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.peer_state import Holding, Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SignedCommit
from tests.coordinator.peers import LAYERS, ME, Peers, plan_of
from tests.harness.manual_clock import ManualClock


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


def linked(peers: Peers, *names: str) -> None:
    """Each of `names` has links of 1 Gbit/s to all others."""
    for name in names:
        links = {other: Link(round_trip_ms=2.0, sent_gbps=1.0, received_gbps=1.0) for other in names if other != name}
        peers.state.links.reported(name, LinkReport(links=links))


def row(step: int, plan_version: int = 1) -> StepMetrics:
    return StepMetrics(
        step=step, loss=1.0, tokens=8, seconds=0.1, plan_version=plan_version, learning_rate=1e-3, grad_norm=1.0,
        predicted_seconds=None,
    )  # fmt: skip


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


async def test_a_profile_is_looked_for_until_its_peers_present_one_is_found(tmp_path: Path) -> None:
    """Lookups cost every peer's uplink: there are none that have nothing to find."""
    peers = Peers(tmp_path)
    await peers.join("a")
    clock, known = ManualClock(), KnownPeers(tmp_path)
    lookup = ProfileLookup(peers.state.members, peers.context.discovery, peers.context.registry, known, clock)

    async def look(times: int) -> None:
        for _ in range(times):
            await lookup.look(1.0)
            peers.state.notify()
            await clock.advance(1.0)

    await look(100)
    assert peers.records.lookups == 0
    await peers.hello("a", session="two")  # started again, elsewhere perhaps: what is found first is of before
    await look(100)
    assert 1 < peers.records.lookups < 20
    new = peers.records.listed["a"].model_copy(update={"device": "cuda:0", "session": "two"})
    peers.records.listed = {"a": new}
    member = peers.state.members.get("a")
    assert member is not None
    waiting = asyncio.create_task(peers.state.wait(lambda: member.profile == new))
    await look(100)
    assert await asyncio.wait_for(waiting, 30)
    before = peers.records.lookups
    await look(100)
    assert peers.records.lookups == before
    await peers.hello("b")
    await look(100)
    assert peers.records.lookups > before


async def test_links_of_a_peer_that_leaves_are_forgotten_and_no_others(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a", "b", "c")
    linked(peers, "a", "b", "c")
    links = peers.state.links
    links.tried([("a", "b"), ("a", "c"), ("b", "c")])
    await peers.goodbye("a")
    assert links.gbps("a", "b") is links.gbps("b", "a") is links.gbps("c", "a") is None
    assert not links.known("a", "b")
    assert (links.gbps("b", "c"), links.gbps("c", "b")) == (1.0, 1.0)
    assert links.known("b", "c")


async def test_links_of_a_peer_that_says_hello_or_goodbye_once_more_are_kept(tmp_path: Path) -> None:
    """After a reconnection presence is published anew, and a last will may follow a goodbye."""
    peers = Peers(tmp_path)
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await peers.hello("a")
    assert peers.state.links.gbps("a", "b") == 1.0
    await peers.goodbye("a")
    linked(peers, "a", "b")
    await peers.goodbye("a")
    assert peers.state.links.gbps("a", "b") == 1.0


async def test_links_that_are_known_before_a_peer_says_hello_are_kept(tmp_path: Path) -> None:
    """A coordinator that takes over reads them from the DHT."""
    peers = Peers(tmp_path)
    linked(peers, "a", "b")
    await peers.hello("a")
    assert peers.state.links.gbps("a", "b") == 1.0


async def test_a_coordinator_is_no_peer(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.hello(ME.peer_id)
    assert peers.state.members.get(ME.peer_id) is None


async def train(peers: Peers, rate: float, **fields: Any) -> None:
    """`b` tells of several steps in which frames came from `a`."""
    for step in range(1, STEPS + 1):
        values: dict[str, Any] = {"state": "training", "plan_version": 1, "step": step, "received_gbps": {"a": rate}}
        await peers.report("b", **(values | fields))


async def test_a_link_whose_frames_come_more_slowly_than_it_was_measured_is_suspected(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of("a", "b")
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await train(peers, 0.1)
    assert peers.state.link_watch.suspects(peers.state.links.gbps) == {("a", "b")}


async def test_a_link_whose_frames_come_as_fast_as_it_was_measured_is_not_suspected(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of("a", "b")
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await train(peers, 0.9)
    assert peers.state.link_watch.suspects(peers.state.links.gbps) == set()


@pytest.mark.parametrize(
    ("plan", "fields"),
    [
        (plan_of("a", "b"), {"state": "stalled"}),
        (plan_of("a", "b", version=2), {}),
        (plan_of("a", "b"), {"plan_version": 2}),
        (None, {}),
    ],
)
async def test_frames_of_who_does_not_train_under_the_plan_in_force_tell_nothing(
    tmp_path: Path, plan: Plan | None, fields: dict[str, Any]
) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan
    await peers.join("a", "b")
    linked(peers, "a", "b")
    await train(peers, 0.1, **fields)
    assert peers.state.link_watch.suspects(peers.state.links.gbps) == set()


async def test_a_plan_has_begun_when_all_its_peers_train_and_that_is_written_down_once(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of("a", "b")
    peers.state.event = PlanEvent(plan=1, why="the first plan", called_at=1.0, in_force_at=2.0, step=0, repeated=0,
                                source="start")  # fmt: skip
    await peers.report("a", "training", plan_version=1, fetched_bytes=30)
    await peers.report("b", "starting", plan_version=1)
    assert peers.begun == []
    for step in range(2):
        await peers.report("b", "training", plan_version=1, step=step, fetched_bytes=12)
    assert peers.begun == [1, 1]
    assert [(event.plan, event.moved_bytes) for event in read(tmp_path)] == [(1, 42)]
    assert peers.state.event is None


async def test_where_a_peer_stands_is_handed_on(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    standing = PeerState(holdings=(Holding(mark=Mark(step=3, plan=1), layers=(0, LAYERS)),))
    await peers.report("a", standing=standing)
    assert peers.stood == [("a", standing)]
    assert peers.state.standings == {"a": standing}


async def test_steps_are_written_down_once_as_those_who_train_report_them_and_the_ledger_says_so(
    tmp_path: Path,
) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of("a", "b")
    await peers.report("stranger", rows=(row(1),))
    assert peers.rows.last == 0
    await peers.report("a", rows=(row(1), row(2)))
    await peers.report("b", rows=(row(2), row(3)))
    await peers.report("b", rows=(row(4, plan_version=7),))
    assert [found.step for found in peers.rows.rows()] == [1, 2, 3]
    assert (await peers.ledgers())[-1].recorded == 3


ARBITER = Identity.generate()
A = ARBITER.peer_id


def on_disk(step: int) -> PeerState:
    """A snapshot of the whole model after a step of the first plan, whose arbiter is `A`."""
    commit = SignedCommit.made(ARBITER, "", 1, step, Commit())
    return PeerState(holdings=(Holding(mark=Mark(step=step, plan=1), layers=(0, LAYERS), commit=commit),))


async def test_a_state_that_two_peers_have_on_disk_is_told_as_safe_once(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of(A, "b")
    await peers.report(A, standing=on_disk(3))
    assert await peers.ledgers() == []
    for _ in range(2):
        await peers.report("b", standing=on_disk(3))
        await peers.ledgers()
    assert await peers.ledgers() == [Ledger(recorded=0, kept=0, safe=Mark(step=3, plan=1))]


async def test_what_strangers_claim_to_have_on_disk_makes_nothing_safe(tmp_path: Path) -> None:
    """Else two of them would have all peers, and the coordinator, delete what is older."""
    peers = Peers(tmp_path)
    peers.state.plan = plan_of(A, "b")
    claim = on_disk(2**31)
    for peer in ("stranger", "another"):
        await peers.report(peer, standing=claim)
    without_commit = (Holding(mark=Mark(step=2**31, plan=1), layers=(0, LAYERS)),)
    await peers.report("b", standing=PeerState(holdings=without_commit))
    assert await peers.ledgers() == []
    assert peers.state.refused.counts == {"stranger": 3, "another": 2, "b": 1}, "once a report"


async def test_who_asks_for_a_sign_of_life_is_given_the_ledger(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.say(CHALLENGE, "a", Challenge(session="one"))
    assert await peers.ledgers() == [Ledger(recorded=0, kept=0)]


async def test_a_phase_is_told_when_it_is_another_one(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    for text in ("for one", "for one", "for two"):
        await peers.announcer.say("waiting", text)
    assert [(phase.name, phase.text) for phase in peers.phases] == [("waiting", "for one"), ("waiting", "for two")]


async def test_the_last_will_of_a_session_that_is_over_means_nothing(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a", "b")
    peers.records.measure("a", "b", 1.0)
    peers.state.links.reported("a", peers.records.measured["a"])
    await peers.hello("a", session="two")
    await peers.hello("a", online=False, session="one")
    assert peers.state.links.gbps("a", "b") == 1.0


async def test_a_report_of_a_session_that_is_over_means_nothing(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a")
    await peers.hello("a", session="two")
    peers.stood.clear()
    await peers.report("a", session="one")
    assert peers.stood == []
    await peers.report("a", session="two")
    assert [peer for peer, _ in peers.stood] == ["a"]


async def test_the_status_file_tells_who_is_there_and_what_is_done(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.join("a")
    peers.state.plan = plan_of("a")
    await peers.announcer.say("training", "plan 1")
    StatusFile(peers.context, peers.state, peers.announcer, peers.rows).write()
    told = json.loads((tmp_path / "status.json").read_text())
    assert (told["phase"], told["text"], told["plan_version"], told["steps"]) == ("training", "plan 1", 1, 90)
    assert [(node["id"], node["state"], node["stage"], node["listed"]) for node in told["nodes"]] == [
        ("a", "idle", 0, True)
    ]


@pytest.mark.parametrize("trouble", ["a full disk", "doors that never answer"])
async def test_what_follows_is_heard_at_once_and_in_order_whatever_a_change_of_plan_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Nothing else is heard while a handler of the control plane waits."""
    peers, tried = Peers(tmp_path), asyncio.Event()

    def no_room(*_: object) -> None:
        tried.set()
        raise UserError("no space left")

    async def is_open(*_: object) -> bool:
        tried.set()
        await asyncio.Event().wait()
        return True

    if trouble == "a full disk":
        monkeypatch.setattr(PlanRecord, "save", no_room)
    driver = PlanChangeDriver(
        tmp_path,
        Role(ME.peer_id, alone=True),
        peers.state.members,
        peers.state,
        peers.context.control.publish,
        lambda text: peers.announcer.say("waiting", text),
        is_genuine=lambda _: True,
        liveness=ProcessLiveness(peers.state.members, is_open),
    )
    heard: list[tuple[str, int]] = []

    def stood(peer: str, standing: PeerState) -> None:
        heard.append((peer, standing.promise.version))
        driver.heard(peer, standing)

    peers.listen(stood, driver.started)
    working = asyncio.create_task(driver.run())
    await peers.join("a", "b")
    door = "/ip4/192.0.2.1/tcp/1"
    listed = peers.records.listed.items()
    profiles = {peer: profile.model_copy(update={"addresses": (door,)}) for peer, profile in listed}
    peers.state.members.listed(profiles)
    peers.state.plan = plan_of("a", "b")
    heard.clear()
    for version in (1, 2):
        for peer in ("a", "b"):
            standing = PeerState(promise=Promise(version=version, to=ME.peer_id))
            await peers.report(peer, "training", plan_version=1, standing=standing)
    await asyncio.wait_for(tried.wait(), 30)
    await peers.report("b", "training", plan_version=1, step=7, standing=standing)
    await peers.goodbye("a")
    member = peers.state.members.get("b")
    assert member is not None
    assert member.report is not None
    assert member.report.step == 7
    assert [one.peer for one in peers.state.members.online()] == ["b"]
    assert heard == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("b", 2)]
    assert not working.done()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_a_safe_state_is_told_although_every_report_brings_rows(tmp_path: Path) -> None:
    """Steps may be faster than reports; peers that never hear of it write no more snapshots."""
    peers = Peers(tmp_path)
    peers.state.plan = plan_of(A, "b")
    for step in range(1, 6):
        for peer in (A, "b"):
            await peers.report(peer, "training", plan_version=1, step=step, standing=on_disk(step), rows=(row(step),))
        assert (await peers.ledgers())[-1] == Ledger(recorded=step, kept=0, safe=Mark(step=step, plan=1))


async def test_what_a_stranger_says_of_a_plans_work_tells_nothing(tmp_path: Path) -> None:
    """Of steps that it claims to have reached, links that it names, peers that it accuses."""
    peers = Peers(tmp_path)
    peers.state.plan = plan_of("a", "b")
    await peers.join("a", "b", "c")
    linked(peers, "a", "b", "c")
    names = {f"made up {number}": 1.0 for number in range(500)}
    for step in range(1, 50):
        await peers.report(
            "c", "training", plan_version=1, step=10**6 + step, busy_seconds=1.0, received_gbps=names, lost=("a", "b")
        )
    assert [member.peer for member in peers.ready()] == ["a", "b", "c"]
    assert peers.state.link_watch._seen == {}
    assert peers.state.pace._last == {}
    assert peers.recorder._lost_up_to == 0


async def test_links_to_peers_that_are_not_in_the_plan_are_not_kept(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.state.plan = plan_of("a", "b")
    for step in range(1, 50):
        gbps = {f"made up {step} {number}": 1.0 for number in range(500)} | {"a": 1.0}
        await peers.report("b", "training", plan_version=1, step=step, received_gbps=gbps, lost=tuple(gbps))
    assert set(peers.state.link_watch._seen) == {("a", "b")}
    assert [member.peer for member in peers.state.members.online()] == ["b"]


async def test_any_number_of_challenges_is_answered_together_and_each_caller_by_its_session(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    for number in range(1000):
        await peers.say(CHALLENGE, f"peer {number % 300}", Challenge(session=f"session {number}"))
    await peers.ledgers()
    (answers,) = [body for _, body in peers.control.said if isinstance(body, Answers)]
    assert answers.to[:2] == ("session 900", "session 901")
    assert len(answers.to) == SEEN_LIMIT
    assert len(await peers.ledgers()) == 1


async def test_a_phase_names_the_run_and_the_epoch_to_which_it_belongs(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    announcer = Announcer(peers.context.control, peers.state, peers.rows, "this run", lambda: 7)
    await announcer.say("failed", "it broke")
    assert [(phase.session, phase.called) for phase in peers.phases] == [("this run", 7)]
