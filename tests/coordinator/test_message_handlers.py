"""What a coordinator hears, from whom it counts, and what is written down of it."""

import asyncio
import json
from pathlib import Path

import pytest

from dtfm_coordinator.leader.status_file import StatusFile
from dtfm_coordinator.plan_change.ended_processes import EndedProcesses
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.plan_change.plan_change_events import Role
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_coordinator.records.event_log import PlanEvent, read
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.peer_state import Holding, Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Plan
from tests.coordinator.peers import LAYERS, ME, Peers, linked, plan_of, row


async def test_a_coordinator_is_no_peer(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    await peers.hello(ME.peer_id)
    assert peers.state.members.get(ME.peer_id) is None


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
    assert peers.begun == [1]
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
        liveness=EndedProcesses(peers.state.members, is_open),
    )
    heard: list[tuple[str, int]] = []

    def stood(peer: str, standing: PeerState, taken: Plan | None) -> None:
        heard.append((peer, standing.promise.version))
        driver.heard(peer, standing, taken)

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
    assert peers.state.pace._step == {}
    assert peers.recorder._lost_up_to == 0
