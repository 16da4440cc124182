"""How one plan follows another: what a coordinator calls for, when it may go on, and what it remembers."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator import succession
from dtfm_coordinator.members import Members
from dtfm_coordinator.succession import Record, Succession
from dtfm_protocol.control import Epoch, Presence, Report
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan import Cost, Plan
from dtfm_protocol.records import Profile
from dtfm_protocol.standing import Holding, Mark, Promise, Standing
from dtfm_protocol.view import LayerSeconds

HOST = "127.0.0.1"
ME = "c"
BEFORE = Plan(version=3, stages=((0, 2), (2, 4)), routes=(("a", "x"), ("b", "x")), author=ME)
"""Of four electors."""
AFTER = BEFORE.model_copy(update={"version": 4})


def nothing(plan: Plan) -> None:
    """Write nothing down."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LATE_SECONDS", "GENTLY_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(succession, name, 0.05)


class Swarm:
    """Peers that answer as they are told, and one coordinator's part in their plans."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.members, self.told, self.said = Members(), list[Epoch](), list[str]()
        settings = {"alone": True, "without_quorum": False, "is_genuine": lambda _: True} | options

        async def publish(epoch: Epoch) -> None:
            self.told.append(epoch)

        async def say(text: str) -> None:
            self.said.append(text)

        self.one = Succession(folder, ME, self.members, publish, self._wait, say, **settings)

    async def _wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        except TimeoutError:
            return False
        return True

    async def stands(
        self,
        peer: str,
        promised: int = 0,
        to: str = ME,
        accepted: int = 0,
        taken: Plan | None = None,
        **standing: Any,
    ) -> Standing:
        """A peer says where it stands."""
        promise = Promise(version=promised, to=to, accepted=accepted)
        where = Standing(promise=promise, **standing)
        self.members.reported(peer, Report(session=peer, state="idle", standing=where, taken=taken))
        await self.one.heard(peer, where)
        return where

    def leave(self, peer: str) -> None:
        self.members.seen(peer, Presence(online=False, session=peer))


async def test_each_call_is_for_a_later_version(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    assert await swarm.one.call(None) == 1
    assert await swarm.one.call(None) == 2
    assert await swarm.one.call(BEFORE) == 4
    assert await swarm.one.call(BEFORE) == 5
    assert [epoch.called for epoch in swarm.told] == [1, 2, 4, 5]


async def test_a_call_is_beyond_all_that_peers_have_promised_to_anybody(tmp_path: Path) -> None:
    """Else they could not answer it."""
    swarm = Swarm(tmp_path)
    await swarm.stands("a", promised=9, to="another")
    await swarm.stands("b", promised=5)
    assert await swarm.one.call(BEFORE) == 10


async def test_what_was_called_for_and_promised_outlives_the_process(tmp_path: Path) -> None:
    first = Swarm(tmp_path)
    version = await first.one.call(BEFORE)
    for peer in ("a", "b"):
        await first.stands(peer, promised=version)
    second = Swarm(tmp_path)
    assert second.one.epoch == Epoch(called=version)
    await second.one.repeat()
    assert second.told == [Epoch(called=version)]
    assert second.one._promised(version) == {ME, "a", "b"}
    assert await second.one.call(BEFORE) == version + 1


async def test_a_record_that_cannot_be_read_is_a_user_error(tmp_path: Path) -> None:
    for text in ("{", '{"epoch": 3}', '{"more": 1}'):
        (tmp_path / "epoch.json").write_text(text)
        with pytest.raises(UserError, match=r"epoch\.json"):
            Swarm(tmp_path)


async def test_with_enough_promises_all_who_gave_them_and_answer_are_told_of(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    holding = Holding(mark=Mark(step=7, plan=3), layers=(0, 2), live=True)
    standings = {peer: await swarm.stands(peer, version, holdings=(holding,)) for peer in ("a", "b", "x", "spare")}
    assert await asyncio.wait_for(swarm.one.agree(BEFORE, version), 5) == standings


async def test_who_has_promised_less_or_to_another_brings_no_state(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    wanted = {peer: await swarm.stands(peer, version) for peer in ("a", "b")}
    await swarm.stands("x", version, to="another")
    await swarm.stands("y", version - 1)
    await swarm.stands("gone", version)
    swarm.leave("gone")
    assert await asyncio.wait_for(swarm.one.agree(BEFORE, version), 5) == wanted


async def test_with_too_few_promises_it_says_what_it_waits_for_and_goes_on_when_they_come(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    waiting = asyncio.create_task(swarm.one.agree(BEFORE, version))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    said = "waiting: 1 of the 4 that decide on what follows plan 3 have answered"
    assert all(text.startswith(said) for text in swarm.said)
    assert "--without-quorum" in swarm.said[0]
    await swarm.stands("a", version)  # with its own promise, half of them, and it made the plan
    assert (await asyncio.wait_for(waiting, 5)).keys() == {"a"}


async def test_a_promise_counts_though_its_peer_has_gone_since(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    for peer in ("a", "b"):
        await swarm.stands(peer, version)
        swarm.leave(peer)
    assert await asyncio.wait_for(swarm.one.agree(BEFORE, version), 5) == {}


async def test_late_promises_are_waited_for_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "LATE_SECONDS", 5.0)
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    for peer in ("a", "b"):
        await swarm.stands(peer, version)
    await swarm.stands("x", 0)
    waiting = asyncio.create_task(swarm.one.agree(BEFORE, version))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await swarm.stands("x", version)
    assert (await asyncio.wait_for(waiting, 1)).keys() == {"a", "b", "x"}


async def test_the_first_plan_waits_for_nobody_and_neither_does_one_without_quorum(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    assert await swarm.one.agree(None, await swarm.one.call(None)) == {}
    forced = Swarm(tmp_path, without_quorum=True)
    version = await forced.one.call(BEFORE)
    await forced.stands("x", 0)
    assert await asyncio.wait_for(forced.one.agree(BEFORE, version), 5) == {}


async def test_a_plan_is_in_force_when_all_its_peers_and_most_of_those_before_have_taken_it(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    assert version == AFTER.version
    for peer in ("a", "b"):
        await swarm.stands(peer, version, accepted=version)
    await swarm.one.agree(BEFORE, version)
    assert not await swarm.one.establish(AFTER, nothing)  # of x, nothing is known
    assert swarm.one.epoch.in_force == 0
    await swarm.stands("x", version)
    assert not await swarm.one.establish(AFTER, nothing)
    await swarm.stands("x", version, accepted=version)
    assert await swarm.one.establish(AFTER, nothing)
    assert swarm.told[-1] == Epoch(called=version, in_force=version)


async def test_a_plan_is_written_down_before_it_is_in_force_and_not_before_it_was_taken(tmp_path: Path) -> None:
    """Who acts under it, the coordinator must be able to end when it returns."""
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    held: list[tuple[Plan, int]] = []

    def hold(plan: Plan) -> None:
        held.append((plan, Swarm(tmp_path).one.epoch.in_force))

    for peer in AFTER.peers:
        await swarm.stands(peer, version)
    await swarm.one.agree(BEFORE, version)
    assert not await swarm.one.establish(AFTER, hold)
    assert held == []
    for peer in AFTER.peers:
        await swarm.stands(peer, version, accepted=version)
    assert await swarm.one.establish(AFTER, hold)
    assert held == [(AFTER, 0)]
    assert Swarm(tmp_path).one.epoch.in_force == version


async def test_a_plan_for_others_is_not_in_force_before_most_of_those_before_have_taken_it(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    version = await swarm.one.call(BEFORE)
    others = Plan(version=version, stages=((0, 4),), routes=(("n",),), idle=("a", "b", "x"), author=ME)
    await swarm.stands("n", version, accepted=version)
    for peer in ("a", "b"):
        await swarm.stands(peer, version)
    await swarm.one.agree(BEFORE, version)
    assert not await swarm.one.establish(others, nothing)
    await swarm.stands("a", version, accepted=version)
    assert await swarm.one.establish(others, nothing)


OTHERS = Plan(version=4, stages=((0, 4),), routes=(("m",), ("n",)), idle=("o",), author="another")
"""Another coordinator's, of which this one does not know."""


async def test_a_plan_of_another_coordinator_that_somebody_has_taken_must_be_followed_too(tmp_path: Path) -> None:
    """It may be in force, and those who train under it may have nothing to do with the plan before."""
    swarm = Swarm(tmp_path, alone=False)
    await swarm.stands("a", promised=4, to="another", accepted=4)
    version = await swarm.one.call(BEFORE)
    assert version == 5
    for peer in ("a", "b"):
        await swarm.stands(peer, version, accepted=4, taken=OTHERS)
    waiting = asyncio.create_task(swarm.one.agree(BEFORE, version))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert "1 of the 4" not in swarm.said[-1]
    assert "follows plan 4" in swarm.said[-1]
    for peer in ("m", "n"):
        await swarm.stands(peer, version, accepted=4, taken=OTHERS)
    await swarm.stands("o", version)
    assert (await asyncio.wait_for(waiting, 5)).keys() == {"a", "b", "m", "n", "o"}
    plan = BEFORE.model_copy(update={"version": version, "routes": (("a", "b"),)})
    for peer in ("a", "b"):
        await swarm.stands(peer, version, accepted=version)
    assert not await swarm.one.establish(plan, nothing)  # of those who decide on the other one, nobody has taken it
    for peer in ("m", "n", "o"):
        await swarm.stands(peer, version, accepted=version)
    assert await swarm.one.establish(plan, nothing)


@pytest.mark.parametrize("change", [{"version": 3}, {"version": 5}, {"author": "nobody"}])
async def test_a_plan_that_is_older_or_newer_or_no_coordinators_changes_nothing(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    swarm = Swarm(tmp_path, alone=False, is_genuine=lambda plan: plan.author != "nobody")
    await swarm.stands("a", promised=4, to="another", accepted=4)
    version = await swarm.one.call(BEFORE)
    for peer in ("a", "b", "x"):
        await swarm.stands(peer, version, accepted=4, taken=OTHERS.model_copy(update=change))
    assert len(await asyncio.wait_for(swarm.one.agree(BEFORE, version), 5)) == 3


async def test_a_gentle_call_waits_for_the_step_under_way_and_then_no_more(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.stands("a", 0)
    calling = asyncio.create_task(swarm.one.call(BEFORE, gently=True))
    await asyncio.sleep(0.02)
    await swarm.stands("a", 4)
    assert await calling == 4
    assert swarm.told == [Epoch(called=4, gently=True)]
    assert await swarm.one.call(BEFORE, gently=True, parked=True) == 5
    assert swarm.told[1:] == [Epoch(called=5, gently=True, parked=True), Epoch(called=5, parked=True)]


async def test_a_gentle_call_is_patient_with_long_steps(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    await swarm.stands("a", 0)
    slow = BEFORE.model_copy(update={"cost": Cost(kind="makespan", total=60.0, data_parallel=0.0, pipeline=0.0)})
    calling = asyncio.create_task(swarm.one.call(slow, gently=True))
    await asyncio.sleep(0.2)
    assert not calling.done()
    calling.cancel()


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
    doors = {peer: open_port() for peer in ("a", "b", "x")}
    with open_port() as spare:
        never = int(spare.getsockname()[1])
    try:
        swarm = Swarm(tmp_path)
        version = await swarm.one.call(None)
        ports = {peer: int(door.getsockname()[1]) for peer, door in doors.items()}
        swarm.members.listed({peer: listed(port, never) for peer, port in ports.items()})
        plan = BEFORE.model_copy(update={"version": version})
        for peer in plan.peers:
            await swarm.stands(peer, version, accepted=version)
        await swarm.one.started(plan)
        assert swarm.told[-1].started == version
        found = Record.model_validate_json((tmp_path / "epoch.json").read_bytes()).doors
        assert found == {peer: ((HOST, port),) for peer, port in ports.items()}
        for peer in ("a", "b"):
            doors[peer].close()
            swarm.leave(peer)
        swarm.leave("x")  # whose machine is cut off, and whose process goes on
        assert await swarm.one._find_ended(plan) == {"a", "b"}
        again = Swarm(tmp_path)
        assert await again.one._find_ended(plan) == {"a", "b"}
        version = await again.one.call(plan)
        assert await asyncio.wait_for(again.one.agree(plan, version), 5) == {}
    finally:
        for door in doors.values():
            door.close()


async def test_a_peer_that_answers_has_not_ended_whatever_its_former_doors_say(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    with open_port() as door:
        swarm.members.listed({"a": listed(int(door.getsockname()[1]))})
        await swarm.stands("a", 3)
        await swarm.one.started(BEFORE)
    assert await swarm.one._find_ended(BEFORE) == set()
    swarm.leave("a")
    assert await swarm.one._find_ended(BEFORE) == {"a"}


async def test_what_is_called_and_promised_while_doors_are_looked_for_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may be followed by the next one within its first step."""
    swarm, knocking, answers = Swarm(tmp_path), asyncio.Event(), asyncio.Event()

    async def slow(host: str, port: int) -> bool:
        knocking.set()
        await answers.wait()
        return True

    monkeypatch.setattr(succession, "knock", slow)
    version = await swarm.one.call(None)
    plan = BEFORE.model_copy(update={"version": version})
    swarm.members.listed({"a": listed(1)})
    starting = asyncio.create_task(swarm.one.started(plan))
    await knocking.wait()
    following = await swarm.one.call(plan)
    await swarm.stands("a", promised=following)
    answers.set()
    await starting
    assert swarm.one.epoch == Epoch(called=following, started=version)
    assert "a" in swarm.one._promised(following)
    assert Swarm(tmp_path).one.epoch.called == following
