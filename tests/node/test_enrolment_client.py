"""The node's credential, from a real entrance and desk on localhost."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import CREDENTIAL_DAYS, Banned
from dtfm_coordinator.serve.enrolment_desk import EnrolmentDesk
from dtfm_node.commands.early_enrolment import enrol
from dtfm_node.control.enrolment_client import EnrolmentClient
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.state_dir import locked
from tests.harness.entrances import HOST, open_entrance
from tests.harness.membership import OWNER, SWARM, coordinator_of

DAY = 86_400.0


class Desk:
    """A coordinator that enrols, and an invite of its."""

    def __init__(self, folder: Path, port: int, admission: Admission, desk: EnrolmentDesk) -> None:
        self.folder, self.port, self.admission, self.desk = folder, port, admission, desk

    def invite(self, uses: int = 1, *, coordinator: Identity = OWNER) -> Invite:
        return Invite(
            swarm=SWARM,
            coordinator=coordinator.peer_id,
            dht=("/ip4/127.0.0.1/tcp/1/p2p/x",),
            entrance=f"{HOST}:{self.port}",
            token=EntryToken.issue(coordinator, SWARM, uses, int(time.time() + DAY)),
        )


@contextlib.asynccontextmanager
async def open_desk(folder: Path) -> AsyncIterator[Desk]:
    admission = coordinator_of(OWNER)
    desk = EnrolmentDesk(OWNER, admission, LedgerFile(folder))
    async with open_entrance(OWNER, admission=admission, enrol=desk.enrol) as (opened, _):
        yield Desk(folder, opened.port, admission, desk)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir()
    return tmp_path / "node"


async def test_a_newcomer_gets_a_credential_that_the_coordinator_takes_and_keeps_it(tmp_path: Path, node: Path) -> None:
    key = Identity.generate()
    async with open_desk(tmp_path) as desk:
        invite = desk.invite()
        mine = await EnrolmentClient(invite, key, node).obtain(5.0)
        assert desk.admission.check(mine.certificate).peer == key.peer_id
        assert mine.check(desk.admission.certificate).peer == OWNER.peer_id
    again = await EnrolmentClient(invite, key, node).obtain(5.0)  # nobody is there to ask
    assert again.certificate == mine.certificate
    assert (node / "credential.json").stat().st_mode & 0o077 == 0


async def test_an_invite_for_one_lets_one_in_and_says_why_not_another(tmp_path: Path, node: Path) -> None:
    async with open_desk(tmp_path) as desk:
        invite = desk.invite()
        await EnrolmentClient(invite, Identity.generate(), node).obtain(5.0)
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(UserError, match=r"does not let this node in: the invite was for 1 machine"):
            await EnrolmentClient(invite, Identity.generate(), other).obtain(5.0)
        assert not list(other.iterdir())


async def test_an_invite_of_another_coordinator_at_that_port_is_found_out_within_seconds(
    tmp_path: Path, node: Path
) -> None:
    """Long before its patience is over; so is an invite whose port another program has."""
    async with open_desk(tmp_path) as desk:
        invite = desk.invite(coordinator=Identity.generate())
        with pytest.raises(UserError, match=r"somebody else .*ask the swarm's owner for the present invite"):
            await asyncio.wait_for(EnrolmentClient(invite, Identity.generate(), node).obtain(300.0), 30)


async def test_a_credential_that_is_about_to_expire_is_made_anew_and_goes_on_where_nobody_answers(
    tmp_path: Path, node: Path
) -> None:
    key, later = Identity.generate(), time.time() + (CREDENTIAL_DAYS - 1) * DAY
    async with open_desk(tmp_path) as desk:
        invite = desk.invite()
        first = await EnrolmentClient(invite, key, node).obtain(5.0)
        second = await EnrolmentClient(invite, key, node, lambda: later).obtain(5.0)
    assert second.certificate != first.certificate
    third = await EnrolmentClient(invite, key, node, lambda: later + 100 * DAY).obtain(1.0)
    assert third.certificate == second.certificate


async def test_a_node_that_stays_has_its_credential_made_anew_in_time(tmp_path: Path, node: Path) -> None:
    key, now = Identity.generate(), time.time()
    looks: list[float] = []

    async def pause(seconds: float) -> None:
        nonlocal now
        if admission.certificate != first:
            raise ZeroDivisionError
        looks.append(seconds)
        now += 5 * DAY + 60  # the desk has its own clock

    async with open_desk(tmp_path) as desk:
        store = EnrolmentClient(desk.invite(), key, node, lambda: now)
        admission = await store.obtain(5.0)
        first = admission.certificate
        with pytest.raises(ZeroDivisionError):
            await store.keep_fresh(admission, asyncio.Event(), pause)
        assert desk.admission.check(admission.certificate).peer == key.peer_id
    assert len(looks) == 3  # of thirty days, half are over


async def test_a_node_waits_for_a_coordinator_that_does_not_lead_yet(tmp_path: Path, node: Path) -> None:
    asked = 0

    def leads() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    async with open_desk(tmp_path) as desk:
        desk.desk.issue_when(leads)
        key = Identity.generate()
        mine = await EnrolmentClient(desk.invite(), key, node).obtain(10.0)
        assert mine.check(mine.certificate).peer == key.peer_id
        assert asked == 3
        desk.desk.issue_when(lambda: False)
        with pytest.raises(UserError, match="no plan of this coordinator is in force yet"):
            await EnrolmentClient(desk.invite(), Identity.generate(), tmp_path).obtain(0.0)


async def test_what_a_node_learns_is_there_when_it_is_started_again_and_nobody_is_heard(
    tmp_path: Path, node: Path
) -> None:
    key, new = Identity.generate(), Identity.generate()
    async with open_desk(tmp_path) as desk:
        invite = desk.invite()
        store = EnrolmentClient(invite, key, node)
        mine = await store.obtain(5.0)
    store.keep(mine)
    mine.ban([Ban.of(OWNER, SWARM, "peer:bad")])
    mine.trust(authority_certificate(new, (Succession.made(OWNER, SWARM, new.peer_id, int(time.time()), 1),)))
    again = await EnrolmentClient(invite, key, node).obtain(1.0)
    assert "peer:bad" in again.bans, "though a key has signed it that was replaced since"
    assert tuple(again.coordinators) == (new.peer_id,)
    assert again.check(again.certificate).peer == key.peer_id


async def test_who_is_banned_gets_no_new_credential(tmp_path: Path, node: Path) -> None:
    key = Identity.generate()
    async with open_desk(tmp_path) as desk:
        invite = desk.invite(uses=9)
        mine = await EnrolmentClient(invite, key, node).obtain(5.0)
        LedgerFile(tmp_path).append(Banned(ban=Ban.of(OWNER, SWARM, f"peer:{key.peer_id}")))
        desk.desk.take_up()
        (node / "credential.json").unlink()
        with pytest.raises(UserError, match="banned"):
            await EnrolmentClient(invite, key, node).obtain(5.0)
        assert not desk.admission.bans.keys() - {f"peer:{key.peer_id}"}
        newcomer = tmp_path / "newcomer"
        newcomer.mkdir()
        other = await EnrolmentClient(invite, Identity.generate(), newcomer).obtain(5.0)
    assert f"peer:{key.peer_id}" in other.bans, "who enters is told whom not to let in"
    assert mine.check(mine.certificate).peer == key.peer_id


async def test_a_node_that_a_broker_refuses_asks_why_and_ends_if_it_is_banned(tmp_path: Path, node: Path) -> None:
    key, refused = Identity.generate(), asyncio.Event()
    async with open_desk(tmp_path) as desk:
        store = EnrolmentClient(desk.invite(uses=9), key, node)
        mine = await store.obtain(5.0)
        first, staying = mine.certificate, asyncio.create_task(store.keep_fresh(mine, refused))
        refused.set()  # by a broker that knew no better
        async with asyncio.timeout(10.0):
            while mine.certificate == first:  # noqa: ASYNC110 - it is made anew in another task
                await asyncio.sleep(0)
        LedgerFile(tmp_path).append(Banned(ban=Ban.of(OWNER, SWARM, f"peer:{key.peer_id}")))
        desk.desk.take_up()
        refused.set()
        with pytest.raises(UserError, match="banned"):
            await asyncio.wait_for(staying, 10.0)


async def test_nothing_is_said_to_whoever_is_not_the_coordinator(tmp_path: Path, node: Path) -> None:
    stranger = Identity.generate()
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: str) -> None:
        heard.append(await reader.read(100))

    async with open_entrance(stranger, admission=coordinator_of(stranger), enrol=listen) as (opened, _):
        desk = Desk(tmp_path, opened.port, coordinator_of(OWNER), None)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"no coordinator answers where the invite says.*not the coordinator"):
            await EnrolmentClient(desk.invite(), Identity.generate(), node).obtain(1.0)
    assert heard == []


async def test_a_request_that_was_listened_to_is_of_no_use_to_another(tmp_path: Path) -> None:
    """The challenge is the coordinator's own, new for each connection."""
    from dtfm_protocol.identity.enrolment import EnrolmentRequest, new_challenge

    async with open_desk(tmp_path) as desk:
        request = EnrolmentRequest.make(Identity.generate(), SWARM, desk.invite().token, new_challenge())
        answer = desk.desk.answer(request, new_challenge(), "192.0.2.1")
    assert (answer.certificate, "signature" in answer.refused) == (None, True)


async def test_who_is_not_let_in_hears_it_before_anything_is_imported_and_leaves_nothing(tmp_path: Path) -> None:
    """With an invite that was used up; in a folder that was there before, all stays."""
    new, old = tmp_path / "new", tmp_path / "old"
    async with open_desk(tmp_path) as desk:
        invite = desk.invite()
        with locked(tmp_path / "first"):
            await asyncio.to_thread(enrol, invite, tmp_path / "first", is_new=True)
        assert (tmp_path / "first" / "credential.json").exists()
        for folder in (new, old):
            with locked(folder):
                (folder / "invite").write_text("x")
                with pytest.raises(UserError, match="the invite was for 1 machine, which has entered"):
                    await asyncio.to_thread(enrol, invite, folder, is_new=folder is new)
    assert not new.exists()
    assert {path.name for path in old.iterdir()} == {"invite", "key", "lock"}
