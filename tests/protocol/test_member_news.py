"""What members tell each other of who is one: it reaches those who hear no coordinator, and liars gain nothing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.member_news import DIGEST_BYTES, NEWS, PAGE, REQUEST_LIMIT, MemberNews, NewsExchange
from dtfm_protocol.wire.stream import Unreachable
from tests.harness.membership import OTHER_SWARM, OWNER, SWARM, member_of

Answer = Callable[[str, bytes], Awaitable[bytes]]


class Network:
    """Members' calls in this process, counted."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.bytes = 0
        self.gone: set[frozenset[str]] = set()
        """Pairs that cannot reach each other."""

    def connected(self, peer: str) -> list[str]:
        return [other for other in self.answers if other != peer and frozenset((peer, other)) not in self.gone]


class Member:
    """One member, and its calls."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.identity, self.admission = member_of(OWNER)
        self.peer = self.identity.peer_id
        self.news = NewsExchange(self, self.admission, self._others, 10.0)

    async def serve(self, name: str, answer: Answer, limit: int) -> None:
        assert (name, limit) == (NEWS, REQUEST_LIMIT)
        self.network.answers[self.peer] = answer

    async def call(self, peer: str, name: str, request: bytes = b"") -> bytes:
        if peer not in self.network.connected(self.peer):
            raise Unreachable(peer)
        assert name == NEWS
        assert len(request) <= REQUEST_LIMIT
        answer = await self.network.answers[peer](self.peer, request)
        self.network.bytes += len(answer)
        return answer

    async def _others(self) -> list[str]:
        return self.network.connected(self.peer)


async def members(network: Network, number: int) -> list[Member]:
    found = [Member(network) for _ in range(number)]
    for member in found:
        await member.news.serve()
    return found


def ban_of(subject: str = "peer:bad", by: Identity = OWNER, swarm: str = SWARM) -> Ban:
    return Ban.of(by, swarm, subject)


async def test_a_ban_reaches_who_hears_no_coordinator_over_others_and_then_nothing_more_is_said() -> None:
    network = Network()
    chain = await members(network, 4)
    for index, one in enumerate(chain):  # each reaches its neighbours alone
        network.gone |= {frozenset((one.peer, other.peer)) for other in chain[index + 2 :]}
    chain[0].admission.ban([ban_of()])
    for _ in range(3):
        for member in chain:
            await member.news.round()
    assert all("peer:bad" in member.admission.bans for member in chain)
    network.bytes = 0
    for member in chain:
        await member.news.round()
    assert network.bytes == 0


async def test_a_ban_that_is_taken_back_and_one_that_is_renewed_reach_who_hears_no_coordinator() -> None:
    network = Network()
    one, middle, other = await members(network, 3)
    network.gone.add(frozenset((one.peer, other.peer)))
    for member in (one, middle, other):
        member.admission.ban([ban_of()])
    for at, holds in ((5, False), (6, True)):
        one.admission.ban([], [BanRuling.of(OWNER, SWARM, "peer:bad", at, holds=holds)])
        for _ in range(2):
            for member in (one, middle, other):
                await member.news.round()
        assert [member.admission.ban_list.holds("peer:bad") for member in (one, middle, other)] == [holds] * 3
        network.bytes = 0
        for member in (one, middle, other):
            await member.news.round()
        assert network.bytes == 0, "there is nothing more to say"


async def test_a_member_that_knows_no_rulings_is_not_asked_again_and_again() -> None:
    network = Network()
    one, older = await members(network, 2)
    for member in (one, older):
        member.admission.ban([ban_of()])
    one.admission.ban([], [BanRuling.of(OWNER, SWARM, "peer:bad", 5, holds=False)])
    await one.news.round()
    one.news._due.clear()
    for turn in range(3):
        await network.answers[one.peer](older.peer, older.news.digest)
        assert one.news._due.is_set() is (turn == 0)
        one.news._due.clear()


async def test_a_ban_is_asked_for_as_soon_as_somebody_has_it() -> None:
    """Not at the next interval, which does not come in this test."""
    network = Network()
    one, other = await members(network, 2)
    running = [asyncio.create_task(member.news.run()) for member in (one, other)]
    known = asyncio.Event()
    other.admission.when_changed(known.set)
    await asyncio.sleep(0)
    one.admission.ban([ban_of()])
    async with asyncio.timeout(5.0):
        await known.wait()
    assert "peer:bad" in other.admission.bans
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_a_new_key_of_the_coordinator_is_learned_from_members_and_a_ban_by_it_counts() -> None:
    network = Network()
    one, other = await members(network, 2)
    new = Identity.generate()
    one.admission.trust(authority_certificate(new, (Succession.made(OWNER, SWARM, new.peer_id, 1, 1),)))
    one.admission.ban([ban_of(by=new)])
    await other.news.round()
    assert tuple(other.admission.coordinators) == (new.peer_id,)
    assert other.admission.bans["peer:bad"].by == new.peer_id


async def test_sets_that_do_not_fit_into_a_call_are_told_in_pages_and_merged_both_ways() -> None:
    network = Network()
    one, other = await members(network, 2)
    one.admission.ban(ban_of(f"peer:{number:05}") for number in range(PAGE + 5))
    other.admission.ban([ban_of("peer:x")])
    await other.news.round()
    await one.news.round()
    assert one.admission.bans.keys() == other.admission.bans.keys()
    assert len(one.admission.bans) == PAGE + 6


@pytest.mark.parametrize(
    "lie",
    [
        MemberNews(bans=(ban_of(by=Identity.generate()),)),
        MemberNews(bans=(ban_of(swarm=OTHER_SWARM),)),
        MemberNews(bans=(ban_of().model_copy(update={"subject": "peer:honest"}),)),
        MemberNews(authorities=(authority_certificate(Identity.generate()).hex(),), bans=(ban_of(),)),
        MemberNews(bans=(ban_of("peer:a").model_copy(update={"signature": "0" * 128}),) * PAGE),
        MemberNews(rulings=(BanRuling.of(OWNER, OTHER_SWARM, "peer:worse", 9, holds=False),)),
    ],
    ids=[
        "a stranger's",
        "of another swarm",
        "of somebody else",
        "with a stranger's certificate",
        "in great number",
        "on another swarm's ban",
    ],
)
async def test_what_no_coordinator_has_signed_is_believed_of_nobody_and_the_others_are_asked_still(
    lie: MemberNews,
) -> None:
    network = Network()
    liar, honest, one = await members(network, 3)
    honest.admission.ban([ban_of("peer:worse")])
    asked = 0

    async def answer(_: str, request: bytes) -> bytes:
        nonlocal asked
        asked += 1
        assert len(request) >= DIGEST_BYTES
        return lie.model_dump_json().encode()

    network.answers[liar.peer] = answer
    await one.news.round()
    assert [ban.subject for ban in one.admission.ban_list.standing] == ["peer:worse"]
    assert tuple(one.admission.coordinators) == (OWNER.peer_id,)
    assert asked == 1


async def test_rubbish_and_silence_are_no_news() -> None:
    network = Network()
    liar, one = await members(network, 2)
    for said in (b"{", b'{"bans": 3}', b"\xff"):

        async def answer(_: str, __: bytes, said: bytes = said) -> bytes:
            return said

        network.answers[liar.peer] = answer
        await one.news.round()

    async def refuse(_: str, __: bytes) -> bytes:
        raise Refused("no")

    network.answers[liar.peer] = refuse
    await one.news.round()
    assert one.admission.bans == {}


def test_only_what_is_signed_for_this_swarm_is_in_the_digest() -> None:
    _, admission = member_of(OWNER)
    _, other = member_of(OWNER)
    assert _digest(admission) == _digest(other)
    admission.ban([ban_of()])
    assert _digest(admission) != _digest(other)
    other.ban([ban_of()])
    assert _digest(admission) == _digest(other)


def _digest(admission: Admission) -> bytes:
    async def nobody() -> list[str]:
        return []

    return NewsExchange(Member(Network()), admission, nobody, 1.0).digest
