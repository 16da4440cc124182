"""A member is given the record of its own work at the coordinator's desk, and nobody else is given anything."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dtfm_coordinator.serve.member_desk import DESK_LIMITS
from dtfm_node.control.contribution_keeper import NAME, ContributionKeeper
from dtfm_node.control.desk_client import DeskClient, NoCoordinator
from dtfm_protocol.control.contribution_record import ContributionRecord
from dtfm_protocol.control.member_requests import CONTRIBUTION
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.keys import Identity
from tests.harness.contributions import record_of
from tests.harness.entrances import free_port, open_entrance
from tests.harness.event_loops import event_loop_policy
from tests.harness.membership import OTHER_SWARM, OWNER, SWARM, TOKEN, member_of
from tests.node.desk_guests import at, open_desk

__all__ = ["event_loop_policy"]  # a fixture
SECONDS = 20.0


async def test_each_member_is_told_of_itself() -> None:
    alice, bob, idle = (member_of(OWNER) for _ in range(3))
    known = {who[0].peer_id: record_of(who[0].peer_id) for who in (alice, bob)}
    async with open_desk(known.get) as desk:
        for who in (alice, bob):
            assert await desk.client(who).contribution(SECONDS) == known[who[0].peer_id]
        assert await desk.client(idle).contribution(SECONDS) is None


async def test_what_a_later_version_asks_for_is_answered() -> None:
    async with open_desk() as desk, desk.client().visit(SECONDS) as visit:
        assert "does not know" in (await visit.ask("medals")).refused


async def test_strangers_and_those_who_are_banned_are_given_nothing() -> None:
    """A banned member hears why; whom no coordinator has signed does not get through the handshake."""
    banned = member_of(OWNER)
    async with open_desk(record_of) as desk:
        desk.admission.ban([Ban.of(OWNER, SWARM, f"peer:{banned[0].peer_id}")])
        async with desk.client(banned).visit(SECONDS) as visit:
            assert "banned" in (await visit.ask(CONTRIBUTION)).refused
        with pytest.raises((OSError, EOFError)):
            await desk.client(member_of(Identity.generate())).contribution(SECONDS)


async def test_one_member_has_so_many_connections_and_no_more() -> None:
    alice = member_of(OWNER)
    async with open_desk(record_of, limits=replace(DESK_LIMITS, of_one=2)) as desk:
        client = desk.client(alice)
        async with client.visit(SECONDS), client.visit(SECONDS):
            with pytest.raises(EOFError):
                await client.contribution(SECONDS)
            assert await desk.client().contribution(SECONDS)
        async with asyncio.timeout(SECONDS):
            while not await _given(client):
                pass


async def _given(client: DeskClient) -> bool:
    try:
        return await client.contribution(SECONDS) is not None
    except EOFError:
        return False


async def test_a_coordinator_that_is_away_or_older_is_told_of() -> None:
    identity, admission = member_of(OWNER)
    with pytest.raises(NoCoordinator, match=r"127\.0\.0\.1"):
        await DeskClient(at(free_port()), identity, admission).contribution(SECONDS)
    async with open_entrance(OWNER) as (door, _):
        door._context.set_alpn_protocols([])  # as before there was a desk
        with pytest.raises(Refused, match="of an earlier version"):
            await DeskClient(at(door.port), identity, admission).contribution(SECONDS)


def keeper_of(folder: Path, peer: str, *answers: ContributionRecord | Exception | None) -> ContributionKeeper:
    """A keeper that is given these answers, one after the other."""
    given = iter(answers)

    async def ask() -> ContributionRecord | None:
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ContributionKeeper(folder, peer, SWARM, Coordinators(SWARM, [OWNER.peer_id]), ask)


async def test_a_record_is_kept_until_a_newer_one_comes_and_over_a_restart(tmp_path: Path) -> None:
    alice = Identity.generate().peer_id
    first, second = record_of(alice, steps=5), record_of(alice, steps=9)
    keeper = keeper_of(tmp_path, alice, None, first, OSError(), EOFError(), Refused("no"), second)
    assert [await keeper.refresh() for _ in range(6)] == [False, True, False, False, False, True]
    assert keeper.said is not None
    assert keeper.said.steps == 9
    said: list[str] = []
    again = ContributionKeeper(tmp_path, alice, SWARM, Coordinators(SWARM, []), keeper._ask, said.append)
    assert again.said == keeper.said
    assert "in 9 steps" in said[0]


async def test_a_forged_record_or_that_of_another_takes_no_ones_place(tmp_path: Path) -> None:
    """One that a member has signed, that of another member, and one of another swarm of the same coordinator."""
    alice, bob = Identity.generate(), Identity.generate()
    genuine = record_of(alice.peer_id)
    wrong = (record_of(alice.peer_id, alice), record_of(bob.peer_id), record_of(alice.peer_id, swarm=OTHER_SWARM))
    keeper = keeper_of(tmp_path, alice.peer_id, genuine, *wrong)
    assert [await keeper.refresh() for _ in range(4)] == [True, False, False, False]
    assert ContributionRecord.parsed((tmp_path / NAME).read_bytes()) == genuine


async def test_it_asks_whenever_a_newer_checkpoint_is_kept(tmp_path: Path) -> None:
    alice = Identity.generate().peer_id
    asked, paused = asyncio.Event(), asyncio.Event()

    async def ask() -> None:
        asked.set()

    async def pause() -> None:
        paused.set()

    keeper = ContributionKeeper(tmp_path, alice, SWARM, Coordinators(SWARM, [TOKEN]), ask, str)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(keeper.run(pause))
        for step in (50, 100):
            keeper.kept(step)
            await asyncio.wait_for(paused.wait(), SECONDS)
            assert asked.is_set()
            asked.clear()
            paused.clear()
        keeper.kept(100)  # said again
        await asyncio.sleep(0)
        assert not asked.is_set()
        running.cancel()
