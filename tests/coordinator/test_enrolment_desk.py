"""The enrolment desk: what the owner writes down takes effect, and two coordinators' ledgers become one."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dtfm_coordinator.membership.ledger_file import NAME, LedgerFile
from dtfm_coordinator.membership.membership_ledger import Banned, Invited, Kicked, Revoked, Ruled
from dtfm_coordinator.serve.enrolment_desk import EnrolmentDesk
from dtfm_protocol.bounds import MOST_UINT32
from dtfm_protocol.control.messages import MembershipNews, TokenUse
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.credential import authority_certificate, issue_credential
from dtfm_protocol.identity.enrolment import EnrolmentAnswer, EnrolmentRequest, new_challenge
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import DAY, OTHER_SWARM, OTHER_TOKEN, OWNER, SWARM, TOKEN, coordinator_of, member_of

SECOND, STRANGER = Identity.generate(), Identity.generate()
BOTH = (OWNER.peer_id, SECOND.peer_id)
END = int(time.time() + DAY)


def desk_of(folder: Path, identity: Identity = OWNER, clock: Callable[[], float] = time.time) -> EnrolmentDesk:
    """The desk of one of two coordinators."""
    folder.mkdir(exist_ok=True)
    return EnrolmentDesk(identity, coordinator_of(identity, coordinators=BOTH), LedgerFile(folder), clock)


def asks(desk: EnrolmentDesk, token: EntryToken, newcomer: Identity) -> EnrolmentAnswer:
    challenge = new_challenge()
    return desk.answer(EnrolmentRequest.make(newcomer, SWARM, token, challenge), challenge, "192.0.2.1")


def credential_of(peer: Identity, token: str = TOKEN) -> bytes:
    return issue_credential(OWNER, SWARM, peer.peer_id, token, END)


def test_what_is_written_beside_a_running_coordinator_takes_effect_once(tmp_path: Path) -> None:
    desk, bad, kicked = desk_of(tmp_path), Identity.generate(), list[str]()
    desk.when_kicked(kicked.append)
    desk.admission.check(credential_of(bad))
    file = LedgerFile(tmp_path)
    file.append(Kicked(peer="a", at=1.0))
    file.append(Banned(ban=Ban.of(OWNER, SWARM, f"peer:{bad.peer_id}")))
    assert [entry.kind for entry in desk.take_up()] == ["kicked", "banned"]
    assert not desk.admission.is_member(bad.peer_id)
    assert desk.take_up() == []
    assert kicked == ["a"]


def test_an_invite_that_was_just_taken_back_lets_nobody_in(tmp_path: Path) -> None:
    desk, token = desk_of(tmp_path), EntryToken.issue(OWNER, SWARM, 2, END)
    assert asks(desk, token, Identity.generate()).certificate
    LedgerFile(tmp_path).append(Revoked(token=token.id))
    assert "taken back" in asks(desk, token, Identity.generate()).refused


def test_a_newcomer_of_a_version_too_far_from_this_one_is_told_so_and_uses_up_no_invite(tmp_path: Path) -> None:
    desk, token, newcomer = desk_of(tmp_path), EntryToken.issue(OWNER, SWARM, 1, END), Identity.generate()
    challenge = new_challenge()
    request = EnrolmentRequest.make(newcomer, SWARM, token, challenge, "77.0.0")
    answer = desk.answer(request, challenge, "192.0.2.1")
    assert answer.certificate is None
    assert "ask the swarm's owner to upgrade the coordinator" in answer.refused
    assert asks(desk, token, newcomer).certificate, "of a version that is not said"


def test_bans_count_again_after_a_restart_and_kicks_do_not(tmp_path: Path) -> None:
    file, bad, kicked = LedgerFile(tmp_path), Identity.generate(), list[str]()
    file.append(Kicked(peer="a", at=1.0))
    file.append(Banned(ban=Ban.of(OWNER, SWARM, f"token:{OTHER_TOKEN}")))
    desk = desk_of(tmp_path)
    desk.when_kicked(kicked.append)
    desk.take_up()
    with pytest.raises(Refused, match="banned"):
        desk.admission.check(credential_of(bad, OTHER_TOKEN))
    assert kicked == []


def test_a_standby_that_takes_over_knows_who_has_entered_with_what_and_who_may_not(tmp_path: Path) -> None:
    first, second = desk_of(tmp_path / "1"), desk_of(tmp_path / "2", SECOND)
    one, taken_back, bad = (EntryToken.issue(OWNER, SWARM, 1, END) for _ in range(3))
    alice = Identity.generate()
    assert asks(first, one, alice).certificate
    file = LedgerFile(tmp_path / "1")
    file.append(Revoked(token=taken_back.id))
    file.append(Banned(ban=Ban.of(OWNER, SWARM, f"token:{bad.id}")))
    first.take_up()
    for _ in range(2):  # it is said again at every change
        second.merge(MembershipNews.model_validate_json(first.news().model_dump_json()))
    for desk in (second, desk_of(tmp_path / "2", SECOND)):  # now, and after a restart
        for token, why in ((one, "has entered already"), (taken_back, "taken back"), (bad, "banned")):
            answer = asks(desk, token, Identity.generate())
            assert why in answer.refused
            assert answer.certificate is None
        assert asks(desk, one, alice).certificate, "a member's credential is made anew by either"
        assert authority_certificate(OWNER) in desk.admission.authorities, "TLS lets in whom the first one has enrolled"
    lines = (tmp_path / "2" / NAME).read_text().splitlines()
    kinds = sorted(json.loads(line)["kind"] for line in lines)
    assert kinds == ["banned", "redeemed", "revoked", "trusted"], "each is written down once"


def test_what_another_coordinator_says_undoes_nothing(tmp_path: Path) -> None:
    desk, alice = desk_of(tmp_path), Identity.generate()
    token = EntryToken.issue(OWNER, SWARM, 1, END)
    asks(desk, token, alice)
    LedgerFile(tmp_path).append(Revoked(token=token.id))
    LedgerFile(tmp_path).append(Banned(ban=Ban.of(OWNER, SWARM, "peer:a")))
    desk.take_up()
    before = desk.news()
    stale = TokenUse(token="0" * 16, peer=alice.peer_id, at=1.0)
    desk.merge(MembershipNews(redeemed=(stale,)))
    assert desk.news() == before


@pytest.mark.parametrize(
    ("by", "swarm", "signed"),
    [(OWNER, OTHER_SWARM, True), (STRANGER, SWARM, True), (OWNER, SWARM, False)],
    ids=["for another swarm", "a stranger's", "that nobody signed"],
)
def test_a_ban_that_does_not_count_is_not_written_down(tmp_path: Path, by: Identity, swarm: str, signed: bool) -> None:
    desk, ban = desk_of(tmp_path), Ban.of(by, swarm, "peer:a")
    if not signed:
        ban = ban.model_copy(update={"signature": "0" * 128})
    with contextlib.suppress(Refused):
        desk.merge(MembershipNews(bans=(ban,)))
    assert not desk.admission.bans
    assert desk_of(tmp_path).news().bans == ()


def test_the_news_name_the_coordinators_certificates_and_keep_what_only_the_owner_is_to_know(tmp_path: Path) -> None:
    desk, token = desk_of(tmp_path), EntryToken.issue(OWNER, SWARM, 9, END)
    LedgerFile(tmp_path).append(Invited(token=token.id, uses=9, expires=END, name="Ada Lovelace"))
    asks(desk, token, Identity.generate())
    news = desk.news()
    assert news.authorities == (authority_certificate(OWNER).hex(),)
    said = news.model_dump_json()
    assert token.id in said
    assert not any(private in said for private in ("Lovelace", "192.0.2.1", token.signature))


def test_of_an_invite_that_was_redeemed_at_two_coordinators_the_first_to_enter_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever of the two hears of the other decides alike; the one turned out enters with another invite."""
    now = time.time()
    first, second = desk_of(tmp_path / "1", clock=lambda: now), desk_of(tmp_path / "2", SECOND, lambda: now + 60)
    one, two, another = (EntryToken.issue(OWNER, SWARM, uses, END) for uses in (1, 2, 1))
    alice, bob = Identity.generate(), Identity.generate()
    for token in (one, two):
        assert asks(first, token, alice if token is one else Identity.generate()).certificate
    late = asks(second, one, bob).certificate
    assert late is not None
    assert asks(second, two, Identity.generate()).certificate, "this one was not used up"
    for here, there in ((first, second), (second, first)):
        here.merge(MembershipNews.model_validate_json(there.news().model_dump_json()))
        with caplog.at_level("WARNING", logger="dtfm"):
            here.turn_out()
        here.turn_out()
        assert list(here.admission.bans) == [f"entry:{one.id}{bob.peer_id}"]
        with pytest.raises(Refused, match="banned"):
            here.admission.check(bytes.fromhex(late))
        assert "others had entered with the invite before" in asks(here, one, bob).refused
        assert asks(here, one, alice).certificate
    assert f"invite {one.id}, redeemed at two coordinators, was for 1 node(s)" in caplog.text
    certificate = asks(first, another, bob).certificate
    assert certificate is not None
    assert first.admission.check(bytes.fromhex(certificate)).peer == bob.peer_id


def test_who_renews_its_credential_is_no_later_for_it(tmp_path: Path) -> None:
    now = time.time()
    first, second = desk_of(tmp_path / "1", clock=lambda: now), desk_of(tmp_path / "2", SECOND, lambda: now)
    one = EntryToken.issue(OWNER, SWARM, 1, END + 10 * int(DAY))
    alice, bob = Identity.generate(), Identity.generate()
    asks(first, one, alice)
    now += 3600
    asks(second, one, bob)
    now += 2 * DAY
    asks(first, one, alice)
    second.merge(first.news())
    second.turn_out()
    assert list(second.admission.bans) == [f"entry:{one.id}{bob.peer_id}"]


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_a_coordinators_clock_that_is_an_hour_off_keeps_nobody_out(tmp_path: Path, ahead: float) -> None:
    """Neither who enters, nor who entered before the key was replaced, nor a plan's peers."""
    desk, alice = desk_of(tmp_path, clock=lambda: time.time() + ahead), Identity.generate()
    answer = asks(desk, EntryToken.issue(OWNER, SWARM, 1, END), alice)
    assert answer.certificate is not None
    _, member = member_of(OWNER)
    new = Identity.generate()
    succession = Succession.made(OWNER, SWARM, new.peer_id, int(time.time() + ahead), 1)
    for _ in range(2):
        assert member.check(bytes.fromhex(answer.certificate)).peer == alice.peer_id
        assert desk.admission.check(member.certificate)
        member.trust(authority_certificate(new, (succession,)))


def test_who_does_not_lead_gives_no_credential_and_says_that_it_may_later(tmp_path: Path) -> None:
    desk, token, leads = desk_of(tmp_path, SECOND), EntryToken.issue(OWNER, SWARM, 1, END), False
    desk.issue_when(lambda: leads)
    answer = asks(desk, token, Identity.generate())
    assert (answer.later, answer.certificate) == (True, None)
    assert not desk.news().redeemed
    leads = True
    assert asks(desk, token, Identity.generate()).certificate


def test_invites_of_a_key_that_was_replaced_lead_in_as_far_as_the_ledger_has_them(tmp_path: Path) -> None:
    """So whoever has got hold of the old key invites nobody."""
    new = Identity.generate()
    own = authority_certificate(new, (Succession.made(OWNER, SWARM, new.peer_id, int(time.time()), 1),))
    known, minted = (EntryToken.issue(OWNER, SWARM, 3, END) for _ in range(2))
    file = LedgerFile(tmp_path)
    file.append(Invited(token=known.id, uses=3, expires=known.expires))
    file.append(Banned(ban=Ban.of(OWNER, SWARM, "peer:bad")))
    desk = EnrolmentDesk(new, Admission(SWARM, [new.peer_id], own, [own]), LedgerFile(tmp_path))
    assert asks(desk, known, Identity.generate()).certificate
    wider = known.model_copy(update={"uses": 9})
    wider = wider.model_copy(update={"signature": OWNER.sign(wider._signable(SWARM)).hex()})
    for token in (minted, wider):
        assert "before the coordinator's key was replaced" in asks(desk, token, Identity.generate()).refused
    (ban,) = desk.news().bans
    assert (ban.by, ban.subject) == (new.peer_id, "peer:bad")
    ban.verify(SWARM)


def test_a_ban_that_is_taken_back_lets_in_again_here_and_at_a_standby_and_no_old_news_renews_it(tmp_path: Path) -> None:
    token, bad = EntryToken.issue(OWNER, SWARM, 1, END), Identity.generate()
    desk, standby = desk_of(tmp_path / "1"), desk_of(tmp_path / "2", SECOND)
    file, subject = LedgerFile(tmp_path / "1"), f"peer:{bad.peer_id}"
    asks(desk, token, bad)
    file.append(Banned(ban=Ban.of(OWNER, SWARM, subject)))
    assert "banned" in asks(desk, token, bad).refused
    old = desk.news()
    standby.merge(old)
    file.append(Ruled(ruling=BanRuling.of(OWNER, SWARM, subject, 5, holds=False)))
    answer = asks(desk, token, bad)
    assert answer.certificate
    assert (answer.bans, [one.subject for one in answer.rulings]) == ((), [subject])
    standby.merge(desk.news())
    for one in (desk, standby):
        one.merge(old)
        assert not one.admission.ban_list.holds(subject)
    again = desk_of(tmp_path / "2", SECOND)
    assert again.news().bans == ()
    assert [one.order for one in again.news().rulings] == [(5, False)]


def test_a_ruling_that_could_never_be_followed_by_another_is_not_taken_over(tmp_path: Path) -> None:
    desk = desk_of(tmp_path)
    desk.merge(MembershipNews(rulings=(BanRuling.of(OWNER, SWARM, "peer:a", MOST_UINT32, holds=False),)))
    assert desk.news().rulings == ()


def test_a_ruling_of_a_key_that_was_replaced_is_signed_anew(tmp_path: Path) -> None:
    new = Identity.generate()
    own = authority_certificate(new, (Succession.made(OWNER, SWARM, new.peer_id, int(time.time()), 1),))
    file = LedgerFile(tmp_path)
    file.append(Banned(ban=Ban.of(OWNER, SWARM, "peer:good")))
    file.append(Ruled(ruling=BanRuling.of(OWNER, SWARM, "peer:good", 5, holds=False)))
    desk = EnrolmentDesk(new, Admission(SWARM, [new.peer_id], own, [own]), LedgerFile(tmp_path))
    (ruling,) = desk.news().rulings
    assert (ruling.by, ruling.order, desk.news().bans) == (new.peer_id, (5, False), ())
    ruling.verify(SWARM)
    assert not desk.admission.ban_list.holds("peer:good")


def test_kicks_are_told_to_all_and_end_streams_once(tmp_path: Path) -> None:
    desk, ended = desk_of(tmp_path / "1"), list[str]()
    other = desk_of(tmp_path / "2", SECOND)
    for one in (desk, other):
        one.admission.when_kicked(ended.append)
    LedgerFile(tmp_path / "1").append(Kicked(peer="a", at=1.0))
    desk.take_up()
    for _ in range(2):
        other.merge(desk.news())
    assert ended == ["a", "a"], "once at each"


async def test_the_swarm_is_told_of_every_change_and_a_plans_peers_are_let_in_when_they_have_expired(
    tmp_path: Path,
) -> None:
    desk, alice, said = desk_of(tmp_path), Identity.generate(), asyncio.Queue[MembershipNews]()
    expired = issue_credential(OWNER, SWARM, alice.peer_id, TOKEN, time.time() - 1)
    with pytest.raises(Refused, match="expired"):
        desk.admission.check(expired)
    attending = asyncio.create_task(desk.attend(said.put, lambda: [alice.peer_id]))
    async with asyncio.timeout(30):
        assert (await said.get()).bans == ()
        assert desk.admission.check(expired).peer == alice.peer_id
        LedgerFile(tmp_path).append(Banned(ban=Ban.of(OWNER, SWARM, "peer:a")))
        assert [ban.subject for ban in (await said.get()).bans] == ["peer:a"]
    attending.cancel()
    await asyncio.wait({attending})
    assert said.empty()


def test_a_disk_that_is_full_gives_no_credential_that_the_ledger_does_not_know(tmp_path: Path) -> None:
    desk, token = desk_of(tmp_path), EntryToken.issue(OWNER, SWARM, 1, END)
    (tmp_path / NAME).mkdir()  # nothing can be written there
    answer = asks(desk, token, Identity.generate())
    assert (answer.refused, answer.certificate) == ("the coordinator cannot write to its disk", None)
