"""From one plan to the next: what a coordinator says, what it writes down first, and what it does not wait for."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.membership import reachable_addresses
from dtfm_coordinator.membership.change_signal import ChangeSignal
from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.plan_change.ended_processes import CHECKS_AT_ONCE, EndedProcesses
from dtfm_coordinator.plan_change.plan_change_driver import STEPS_OF_PATIENCE, PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import Role
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_protocol.control.messages import Epoch, Presence, Report, Topic
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.peer_state import Holding, Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Cost, Plan
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Schema
from dtfm_protocol.view.view import LayerSeconds
from tests.harness.manual_clock import FastClock, ManualClock

HOST = "127.0.0.1"
ME = "c"
BEFORE = Plan(version=3, stages=((0, 2), (2, 4)), routes=(("a", "x"), ("b", "x")), author=ME)
"""Of four electors."""
AFTER = BEFORE.model_copy(update={"version": 4})


def nothing(plan: Plan) -> None:
    """Write nothing down."""


async def turns(count: int = 20) -> None:
    """Let all go on who can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class Swarm:
    """Peers that answer as they are told, and one coordinator's part in their plans."""

    def __init__(self, folder: Path, before: Plan | None = None, **options: Any) -> None:
        self.clock = options.pop("clock", None) or FastClock()
        self.members, self.signal = Members(), ChangeSignal(self.clock)
        self.told, self.said, self.plans = list[Epoch](), list[str](), list[Plan]()
        is_open = options.pop("is_open", reachable_addresses.is_open)
        is_genuine = options.pop("is_genuine", lambda _: True)

        async def publish(_: Topic, body: Schema) -> None:
            if isinstance(body, Epoch):
                self.told.append(body)
            elif isinstance(body, Plan):
                self.plans.append(body)

        async def say(text: str) -> None:
            self.said.append(text)

        self.one = PlanChangeDriver(
            folder,
            Role(ME, **({"alone": True} | options)),
            self.members,
            self.signal,
            publish,
            say,
            is_genuine=is_genuine,
            liveness=EndedProcesses(self.members, is_open),
        )
        if before is not None:
            self.one.returns(before)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, folder: Path, before: Plan | None = None, **options: Any) -> AsyncIterator["Swarm"]:
        """One that does what it decides; what it has said again of before is forgotten."""
        swarm = cls(folder, before, **options)
        working = asyncio.create_task(swarm.one.run())
        try:
            await turns()
            swarm.told.clear()
            yield swarm
        finally:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

    async def stands(
        self,
        peer: str,
        promised: int = 0,
        to: str = ME,
        accepted: int = 0,
        taken: Plan | None = None,
        **standing: Any,
    ) -> PeerState:
        """A peer says where it stands."""
        promise = Promise(version=promised, to=to, accepted=accepted)
        where = PeerState(promise=promise, **standing)
        self.members.reported(peer, Report(session=peer, state="idle", standing=where, taken=taken))
        self.one.heard(peer, where, taken)
        self.signal.notify()
        await turns()
        return where

    def leave(self, peer: str) -> None:
        self.members.seen(peer, Presence(online=False, session=peer))
        self.signal.notify()


async def test_each_call_is_for_a_later_version(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path) as swarm:
        assert await swarm.one.call() == 1
        assert await swarm.one.call() == 2
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        assert await swarm.one.call() == 4
        assert await swarm.one.call() == 5
        assert [epoch.called for epoch in swarm.told] == [4, 5]


async def test_a_call_is_beyond_all_that_peers_have_promised_to_anybody(tmp_path: Path) -> None:
    """Else they could not answer it."""
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        await swarm.stands("a", promised=9, to="another")
        await swarm.stands("b", promised=5)
        assert await swarm.one.call() == 10


async def test_what_was_called_for_and_promised_outlives_the_process(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path, BEFORE) as first:
        version = await first.one.call()
        for peer in ("a", "b"):
            await first.stands(peer, promised=version)
    assert PlanRecord.of(tmp_path).promised == {"a": version, "b": version}
    second = Swarm(tmp_path, BEFORE)
    assert second.one.epoch == Epoch(called=version)
    working = asyncio.create_task(second.one.run())
    await turns()
    assert (second.plans, second.told) == ([BEFORE], [Epoch(called=version)])
    assert await second.one.call() == version + 1
    working.cancel()


async def test_a_record_that_cannot_be_read_is_a_user_error(tmp_path: Path) -> None:
    for text in ("{", '{"epoch": 3}', '{"more": 1}'):
        (tmp_path / "epoch.json").write_text(text)
        with pytest.raises(UserError, match=r"epoch\.json"):
            Swarm(tmp_path)


async def test_with_enough_promises_all_who_gave_them_and_answer_are_told_of(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        version = await swarm.one.call()
        holding = Holding(mark=Mark(step=7, plan=3), layers=(0, 2), live=True)
        standings = {peer: await swarm.stands(peer, version, holdings=(holding,)) for peer in ("a", "b", "x", "spare")}
        assert await asyncio.wait_for(swarm.one.agree(), 30) == standings


async def test_who_has_promised_less_or_to_another_brings_no_state(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        version = await swarm.one.call()
        wanted = {peer: await swarm.stands(peer, version) for peer in ("a", "b")}
        await swarm.stands("x", version, to="another")
        await swarm.stands("y", version - 1)
        await swarm.stands("gone", version)
        swarm.leave("gone")
        assert await asyncio.wait_for(swarm.one.agree(), 30) == wanted


async def test_with_too_few_promises_it_says_what_it_waits_for_and_goes_on_when_they_come(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        version = await swarm.one.call()
        waiting = asyncio.create_task(swarm.one.agree())
        await until(lambda: len(swarm.said) > 1)
        assert not waiting.done()
        said = "waiting: 1 of the 4 that decide on what follows plan 3 have answered"
        assert all(text.startswith(said) for text in swarm.said)
        assert "--without-quorum" in swarm.said[0]
        await swarm.stands("a", version)  # with its own promise, half of them, and it made the plan
        assert (await asyncio.wait_for(waiting, 30)).keys() == {"a"}


async def test_a_promise_counts_though_its_peer_has_gone_since(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        version = await swarm.one.call()
        for peer in ("a", "b"):
            await swarm.stands(peer, version)
            swarm.leave(peer)
        assert await asyncio.wait_for(swarm.one.agree(), 30) == {}


async def test_late_promises_are_waited_for_a_little(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Swarm.running(tmp_path, BEFORE, clock=clock) as swarm:
        version = await swarm.one.call()
        for peer in ("a", "b"):
            await swarm.stands(peer, version)
        await swarm.stands("x", 0)
        waiting = asyncio.create_task(swarm.one.agree())
        await clock.advance(TIMEOUTS.late_promise - 0.1)
        assert not waiting.done()
        await swarm.stands("x", version)
        assert (await asyncio.wait_for(waiting, 30)).keys() == {"a", "b", "x"}


async def test_the_first_plan_waits_for_nobody_and_neither_does_one_without_quorum(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path) as swarm:
        await swarm.one.call()
        assert await swarm.one.agree() == {}
    async with Swarm.running(tmp_path, BEFORE, without_quorum=True) as forced:
        await forced.one.call()
        await forced.stands("x", 0)
        assert await asyncio.wait_for(forced.one.agree(), 30) == {}


async def test_a_plan_is_in_force_when_all_its_peers_and_most_of_those_before_have_taken_it(tmp_path: Path) -> None:
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        version = await swarm.one.call()
        assert version == AFTER.version
        for peer in ("a", "b"):
            await swarm.stands(peer, version, accepted=version)
        await swarm.one.agree()
        assert not await swarm.one.establish(AFTER, nothing)  # of x, nothing is known
        assert swarm.plans[-1] == AFTER
        assert swarm.one.epoch.in_force == 0
        version = await swarm.one.call()
        plan = AFTER.model_copy(update={"version": version})
        for peer in plan.peers:
            await swarm.stands(peer, version)
        await swarm.one.agree()
        assert not await swarm.one.establish(plan, nothing)  # nobody takes it in time
        version = await swarm.one.call()
        plan = AFTER.model_copy(update={"version": version})
        for peer in plan.peers:
            await swarm.stands(peer, version, accepted=version)
        await swarm.one.agree()
        assert await asyncio.wait_for(swarm.one.establish(plan, nothing), 30)
        assert swarm.told[-1] == Epoch(called=version, in_force=version)


async def test_a_plan_is_written_down_before_it_is_in_force_and_not_before_it_was_taken(tmp_path: Path) -> None:
    """Who acts under it, the coordinator must be able to end when it returns."""
    held: list[tuple[Plan, int]] = []

    def hold(plan: Plan) -> None:
        held.append((plan, PlanRecord.of(tmp_path).epoch.in_force))

    async with Swarm.running(tmp_path, BEFORE) as swarm:
        version = await swarm.one.call()
        for peer in AFTER.peers:
            await swarm.stands(peer, version)
        await swarm.one.agree()
        assert not await swarm.one.establish(AFTER, hold)
        assert held == []
        version = await swarm.one.call()
        plan = AFTER.model_copy(update={"version": version})
        for peer in plan.peers:
            await swarm.stands(peer, version, accepted=version)
        await swarm.one.agree()
        assert await asyncio.wait_for(swarm.one.establish(plan, hold), 30)
    assert held == [(plan, 0)]
    assert PlanRecord.of(tmp_path).epoch.in_force == version


async def test_only_a_coordinators_plan_that_somebody_has_taken_must_be_followed_too(tmp_path: Path) -> None:
    """What peers show is checked; the rest of the rule is in `test_plan_change`."""
    others = Plan(version=4, stages=((0, 4),), routes=(("m",), ("n",)), idle=("o",), author="another")
    asked: list[str] = []

    def is_genuine(plan: Plan) -> bool:
        asked.append(plan.author)
        return plan.author != "nobody"

    async with Swarm.running(tmp_path, BEFORE, alone=False, is_genuine=is_genuine) as swarm:
        forged = others.model_copy(update={"author": "nobody"})
        await swarm.stands("a", promised=4, to="another", accepted=4, taken=forged)
        assert asked == [], "only with a promise to this coordinator is it worth a look"
        version = await swarm.one.call()
        assert version == 5
        for peer in ("a", "b"):
            await swarm.stands(peer, version, accepted=4, taken=forged)
        assert len(await asyncio.wait_for(swarm.one.agree(), 30)) == 2
        assert asked == ["nobody"]
        assert swarm.one.follows == BEFORE
        version = await swarm.one.call()
        for peer in ("a", "b"):
            await swarm.stands(peer, version, accepted=4, taken=others)
        waiting = asyncio.create_task(swarm.one.agree())
        await until(lambda: bool(swarm.said) and "follows plan 4" in swarm.said[-1])
        assert not waiting.done()
        for peer in ("m", "n"):
            await swarm.stands(peer, version, accepted=4, taken=others)
        await swarm.stands("o", version)
        assert (await asyncio.wait_for(waiting, 30)).keys() >= {"a", "b", "m", "n"}
        assert swarm.one.follows == others, "states are judged by the chain of the newest plan that may be in force"


async def test_a_gentle_call_waits_for_the_step_under_way_and_then_no_more(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Swarm.running(tmp_path, BEFORE, clock=clock) as swarm:
        await swarm.stands("a", 0)
        calling = asyncio.create_task(swarm.one.call(gently=True))
        await clock.advance(TIMEOUTS.step_end - 0.1)
        assert not calling.done()
        await swarm.stands("a", 4)
        assert await calling == 4
        assert swarm.told == [Epoch(called=4, gently=True)]
        calling = asyncio.create_task(swarm.one.call(gently=True, parked=True))
        await clock.advance(TIMEOUTS.step_end - 0.1)
        assert not calling.done()
        await clock.advance(0.2)
        assert await asyncio.wait_for(calling, 30) == 5
        assert swarm.told[1:] == [Epoch(called=5, gently=True, parked=True), Epoch(called=5, parked=True)]


async def test_a_gentle_call_is_patient_with_long_steps(tmp_path: Path) -> None:
    slow = BEFORE.model_copy(update={"cost": Cost(kind="makespan", total=60.0, data_parallel=0.0, pipeline=0.0)})
    clock = ManualClock()
    async with Swarm.running(tmp_path, slow, clock=clock) as swarm:
        await swarm.stands("a", 0)
        calling = asyncio.create_task(swarm.one.call(gently=True))
        await clock.advance(STEPS_OF_PATIENCE * 60.0 - 0.1)
        assert not calling.done()
        calling.cancel()


# -- doors


def open_port() -> socket.socket:
    door = socket.socket()
    door.bind((HOST, 0))
    door.listen()
    return door


def listed(*ports: int) -> Profile:
    return Profile(
        device="cpu",
        flops={"fp32": 1e11},
        layer_seconds=LayerSeconds(forward=0.1, backward=0.2),
        memory_bytes=1e9,
        addresses=tuple(f"/ip4/{HOST}/tcp/{port}" for port in ports),
        version="0.1.0",
    )


async def test_a_process_whose_doors_have_closed_has_ended_and_one_that_was_only_lost_has_not(tmp_path: Path) -> None:
    """The doors are looked for while it lives: an address that never answered tells nothing later."""
    ports = {peer: open_port() for peer in ("a", "b", "x")}
    with open_port() as spare:
        never = int(spare.getsockname()[1])
    try:
        numbers = {peer: int(door.getsockname()[1]) for peer, door in ports.items()}
        async with Swarm.running(tmp_path, BEFORE) as swarm:
            swarm.members.listed({peer: listed(port, never) for peer, port in numbers.items()})
            assert swarm.one.started(BEFORE)
            assert not swarm.one.started(BEFORE)
            await until(lambda: PlanRecord.of(tmp_path).doors_of == 3)
            assert swarm.told[-1].started == 3
        found = PlanRecord.of(tmp_path)
        assert found.doors == {peer: ((HOST, port),) for peer, port in numbers.items()}
        liveness, known = EndedProcesses(Members()), found.durable.doors
        assert await liveness.ended(known) == set()
        for peer in ("a", "b"):
            ports[peer].close()
        assert await liveness.ended(known) == {"a", "b"}  # x's machine may be cut off: its process goes on
        async with Swarm.running(tmp_path, BEFORE) as again:
            await again.one.call()
            assert await asyncio.wait_for(again.one.agree(), 30) == {}
    finally:
        for door in ports.values():
            door.close()


async def test_a_peer_that_answers_has_not_ended_whatever_its_former_doors_say() -> None:
    with open_port() as door:
        port = int(door.getsockname()[1])
    members = Members()
    known = (("a", ((HOST, port),)), ("silent", ()))
    members.reported("a", Report(session="a", state="idle"))
    assert await EndedProcesses(members).ended(known) == set()
    members.seen("a", Presence(online=False, session="a"))
    assert await EndedProcesses(members).ended(known) == {"a"}


async def test_only_so_many_doors_are_knocked_at_at_once() -> None:
    """Each is a socket."""
    members, open_now, most = Members(), 0, 0
    members.listed({f"p{number}": listed(*range(10 * number + 1, 10 * number + 9)) for number in range(20)})

    async def is_open(host: str, port: int) -> bool:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0)
        open_now -= 1
        return True

    found = await EndedProcesses(members, is_open).open_at(tuple(f"p{number}" for number in range(20)))
    assert [len(known) for _, known in found] == [8] * 20
    assert most == CHECKS_AT_ONCE


# -- nothing waits for a disk or a door


class Full:
    """A disk without room until a test makes some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.tries, write = True, 0, PlanRecord.save

        def save(record: PlanRecord, folder: Path) -> None:
            self.tries += 1
            if self.full:
                raise UserError("no space left")
            write(record, folder)

        monkeypatch.setattr(PlanRecord, "save", save)


async def test_what_is_heard_on_a_full_disk_is_noted_at_once_and_counts_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        version = await swarm.one.call()
        waiting = asyncio.create_task(swarm.one.agree())
        disk = Full(monkeypatch)
        for peer in ("a", "b"):
            await asyncio.wait_for(swarm.stands(peer, version), 30)
        await until(lambda: disk.tries > 2)
        assert not waiting.done()
        assert any(text.startswith("waiting for room: no space left") for text in swarm.said)
        disk.full = False
        assert (await asyncio.wait_for(waiting, 30)).keys() == {"a", "b"}
    assert PlanRecord.of(tmp_path).promised == {"a": version, "b": version}


async def test_nothing_is_said_while_the_disk_is_full_and_then_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Swarm.running(tmp_path, BEFORE) as swarm:
        disk = Full(monkeypatch)
        swarm.one.started(BEFORE)
        calling = asyncio.create_task(swarm.one.call())
        await until(lambda: disk.tries > 2)
        assert (swarm.told, calling.done()) == ([], False)
        disk.full = False
        assert await asyncio.wait_for(calling, 30) == 4
        assert swarm.told[-1] == Epoch(called=4, started=3)
        assert [epoch.called for epoch in swarm.told] == sorted(epoch.called for epoch in swarm.told)
    assert PlanRecord.of(tmp_path).epoch == Epoch(called=4, started=3)


async def test_what_is_called_and_promised_while_doors_do_not_answer_is_kept(tmp_path: Path) -> None:
    """A plan may be followed by the next one within its first step."""
    asked, answers = asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int) -> bool:
        asked.set()
        await answers.wait()
        return True

    async with Swarm.running(tmp_path, BEFORE, is_open=slow) as swarm:
        swarm.members.listed({"a": listed(1)})
        assert swarm.one.started(BEFORE)
        await asyncio.wait_for(asked.wait(), 30)
        following = await asyncio.wait_for(swarm.one.call(), 30)
        await swarm.stands("a", promised=following)
        assert PlanRecord.of(tmp_path).promised == {"a": following}
        answers.set()
        await until(lambda: PlanRecord.of(tmp_path).doors_of == 3)
        assert swarm.one.epoch == Epoch(called=following, started=3)
    record = PlanRecord.of(tmp_path)
    assert (record.epoch.called, record.promised, record.doors["a"]) == (following, {"a": following}, ((HOST, 1),))
