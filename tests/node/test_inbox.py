"""What a node makes of coordinators' words on who is a member."""

import asyncio
import time
from typing import Any

import pytest
from packaging.version import Version

from dtfm_node.control.display import Display
from dtfm_node.control.inbox import Inbox
from dtfm_protocol.control.messages import (
    ANSWERS,
    EPOCH,
    MEMBERSHIP,
    PHASE,
    PLAN,
    PROBE,
    Answers,
    Epoch,
    Kick,
    MembershipNews,
    Phase,
    ProbeRound,
    Topic,
)
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import authority_certificate, issue_credential
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.schema import Schema
from tests.harness.manual_clock import ManualClock, settle
from tests.harness.membership import DAY, OWNER, SWARM, TOKEN, invite_of

SECOND, STRANGER = Identity.generate(), Identity.generate()


class Node:
    """A node's inbox and admission; SECOND may take over from OWNER."""

    def __init__(self) -> None:
        self.identity = Identity.generate()
        self._readers: dict[str, Any] = {}
        coordinators = (OWNER.peer_id, SECOND.peer_id)
        own = issue_credential(OWNER, SWARM, self.identity.peer_id, TOKEN, time.time() + DAY)
        self.admission = Admission(SWARM, coordinators, own, [authority_certificate(OWNER)])
        self.display = Display("plain")
        self.inbox = Inbox(invite_of(), self.identity.peer_id, self.display, None, "mine")  # type: ignore[arg-type]
        self.inbox.knows(self.admission)
        self.inbox.read(self)  # type: ignore[arg-type]  # it subscribes, and says nothing

    def on(self, topic: Topic, reader: Any) -> None:
        self._readers[topic.name] = reader

    async def publish(self, topic: Topic, message: Schema) -> None:
        raise AssertionError("a node says nothing here")

    def hear(self, topic: Topic, message: Schema, by: Identity = OWNER) -> None:
        self._readers[topic.name](by.peer_id, message)


@pytest.fixture
def node() -> Node:
    return Node()


def credential(peer: Identity, by: Identity = OWNER, *, days: float = 1.0) -> bytes:
    return issue_credential(by, SWARM, peer.peer_id, TOKEN, time.time() + days * DAY)


def answers(version: str, to: str = "mine") -> Answers:
    return Answers(to=(to,), session="its run", version=version)


async def test_a_node_ends_once_a_coordinator_that_lives_has_a_version_too_far_from_its_own(node: Node) -> None:
    waiting = asyncio.ensure_future(node.inbox.until_misfit())
    node.hear(ANSWERS, answers("77.0.0", to="another"))
    node.hear(ANSWERS, answers(product_version()))
    await asyncio.sleep(0)
    assert not waiting.done()
    node.hear(ANSWERS, answers("77.0.0"))
    with pytest.raises(UserError, match="which are a major version apart"):
        await waiting


def test_a_node_says_once_that_its_coordinator_has_a_version_beside_its_own(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    beside = Version(product_version())
    caplog.set_level("INFO", logger=log.name)
    for _ in range(2):
        node.hear(ANSWERS, answers(f"{beside.major}.{beside.minor + 1}.0"))
    assert sum("they work together" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("whole_token", [False, True])
def test_a_ban_ends_a_membership_at_once_and_whoever_holds_streams_is_told(node: Node, whole_token: bool) -> None:
    alice, told = Identity.generate(), list[bool]()
    node.admission.check(credential(alice))
    node.admission.when_changed(lambda: told.append(node.admission.is_member(alice.peer_id)))
    subject = f"token:{TOKEN}" if whole_token else f"peer:{alice.peer_id}"
    node.hear(MEMBERSHIP, MembershipNews(bans=(Ban.of(OWNER, SWARM, subject),)))
    assert told == [False]
    with pytest.raises(Refused, match="banned"):
        node.admission.check(credential(alice))


def test_a_ban_that_no_coordinator_signed_ends_none(node: Node) -> None:
    alice = Identity.generate()
    subject = f"peer:{alice.peer_id}"
    node.admission.check(credential(alice))
    node.hear(MEMBERSHIP, MembershipNews(bans=(Ban.of(STRANGER, SWARM, subject),)))
    changed = Ban.of(OWNER, SWARM, "peer:a").model_copy(update={"subject": subject})
    with pytest.raises(Refused):
        node.hear(MEMBERSHIP, MembershipNews(bans=(changed,)))
    assert node.admission.is_member(alice.peer_id)


def test_who_has_entered_at_a_second_coordinator_is_let_in_once_its_certificate_is_told(node: Node) -> None:
    authority = authority_certificate(SECOND)
    assert authority not in node.admission.authorities
    node.hear(MEMBERSHIP, MembershipNews(authorities=(authority.hex(),)))
    assert authority in node.admission.authorities
    node.admission.check(credential(Identity.generate(), SECOND))


def test_a_strangers_certificate_is_no_authority_whoever_tells_of_it(node: Node) -> None:
    with pytest.raises(Refused, match="does not coordinate this swarm"):
        node.hear(MEMBERSHIP, MembershipNews(authorities=(authority_certificate(STRANGER).hex(),)))
    with pytest.raises(Refused):
        node.admission.check(credential(Identity.generate(), STRANGER))


def test_a_plan_in_force_lets_its_peers_in_when_they_have_expired_and_none_before_or_after_it(node: Node) -> None:
    trains, spare, other = (Identity.generate() for _ in range(3))

    def let_in() -> list[bool]:
        found = []
        for peer in (trains, spare, other):
            try:
                node.admission.check(credential(peer, days=-1.0))
                found.append(True)
            except Refused:
                found.append(False)
        return found

    def plan(version: int, *peers: Identity, idle: tuple[Identity, ...] = ()) -> Plan:
        routes, spares = tuple((peer.peer_id,) for peer in peers), tuple(peer.peer_id for peer in idle)
        return Plan(version=version, stages=((0, 2),), routes=routes, idle=spares).signed(OWNER, SWARM)

    node.hear(PLAN, plan(1, trains, idle=(spare,)))
    assert let_in() == [False, False, False]
    node.hear(EPOCH, Epoch(called=1, in_force=1))
    assert let_in() == [True, True, False]
    node.hear(EPOCH, Epoch(called=2, in_force=1))
    node.hear(PLAN, plan(2, other))
    assert let_in() == [True, True, False], "a plan that is proposed is not in force"
    node.hear(EPOCH, Epoch(called=2, in_force=2))
    assert let_in() == [False, False, True]


def test_a_plan_in_force_lets_nobody_in_who_is_banned(node: Node) -> None:
    alice = Identity.generate()
    plan = Plan(version=1, stages=((0, 2),), routes=((alice.peer_id,),)).signed(OWNER, SWARM)
    node.hear(PLAN, plan)
    node.hear(EPOCH, Epoch(called=1, in_force=1))
    assert node.admission.check(credential(alice, days=-1.0)).peer == alice.peer_id
    node.hear(MEMBERSHIP, MembershipNews(bans=(Ban.of(OWNER, SWARM, f"peer:{alice.peer_id}"),)))
    assert not node.admission.is_member(alice.peer_id)


def test_a_node_is_sent_away_by_a_kick_since_it_began_and_not_by_earlier_ones(node: Node) -> None:
    """Whoever was kicked, and joins again, hears of that kick from each coordinator first of all."""

    def hear(peer: str, at: float, by: Identity = OWNER) -> bool:
        node.hear(MEMBERSHIP, MembershipNews(kicked=(Kick(peer=peer, at=at),)), by)
        return node.inbox.sent_away.is_set()

    node.hear(MEMBERSHIP, MembershipNews(), SECOND)
    assert not hear(node.identity.peer_id, 5.0)
    assert not hear(node.identity.peer_id, 5.0, SECOND)
    assert not hear(STRANGER.peer_id, 9.0)
    assert hear(node.identity.peer_id, 6.0)


class Calm:
    """A node that waits until nobody measures links, for 10 s at a time."""

    def __init__(self) -> None:
        self.node, self.clock = Node(), ManualClock()
        self.node.inbox._challenge = None  # whether a coordinator lives is no matter here
        self.waiting = asyncio.ensure_future(self.node.inbox.until_calm(10.0, self.clock))

    async def round(self) -> None:
        await self.node._readers[PROBE.name](OWNER.peer_id, ProbeRound(id=1, addresses={}))

    async def is_over(self) -> bool:
        await settle()
        return self.waiting.done()


async def test_as_long_as_rounds_of_measurements_come_it_is_not_calm() -> None:
    calm = Calm()
    for _ in range(3):
        await calm.clock.advance(9.0)
        await calm.round()
        assert not await calm.is_over()
    await calm.clock.advance(21.0)
    assert await calm.is_over()


async def test_once_a_plan_is_made_it_is_calm() -> None:
    calm = Calm()
    await calm.round()
    calm.node.hear(PHASE, Phase(name="probing", text="measuring links: round 1"))
    assert not await calm.is_over()
    calm.node.hear(PHASE, Phase(name="planning", text="planning for 4 nodes"))
    assert await calm.is_over()


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_plan_for_this_node_makes_it_calm_and_one_that_others_follow_does_not(is_own: bool) -> None:
    calm = Calm()
    peer = calm.node.identity.peer_id if is_own else SECOND.peer_id
    plan = Plan(version=1, stages=((0, 1),), routes=((peer,),))
    calm.node.hear(PLAN, plan.signed(OWNER, SWARM))
    assert await calm.is_over() == is_own
    calm.waiting.cancel()
