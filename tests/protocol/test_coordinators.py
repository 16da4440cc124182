"""A coordinator's new key: who follows it and why, and what the old one still counts for."""

import time
from itertools import pairwise

import pytest

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.admission import FORMER_SECONDS, Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import (
    CERTIFICATE_LIMIT,
    authority_certificate,
    issue_credential,
    read_credential,
)
from dtfm_protocol.identity.key_succession import MOST_SUCCESSIONS, Succession
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import DAY, OTHER_SWARM, OWNER, SWARM, TOKEN, coordinator_of, member_of

NEW, SECOND = Identity.generate(), Identity.generate()
NOW = int(time.time())


def replaced(before: Identity, after: Identity, swarm: str = SWARM, called: int = 7) -> Succession:
    return Succession.made(before, swarm, after.peer_id, NOW, called)


def certificate(after: Identity, *chain: Succession) -> bytes:
    return authority_certificate(after, chain)


SUCCESSOR = certificate(NEW, replaced(OWNER, NEW))


def test_a_new_keys_certificate_says_whose_place_it_has_taken_and_members_follow_it() -> None:
    known = Coordinators(SWARM, [OWNER.peer_id, SECOND.peer_id])
    assert known.follow(read_credential(SUCCESSOR))
    assert tuple(known) == (NEW.peer_id, SECOND.peer_id)
    assert OWNER.peer_id not in known
    assert known.present(OWNER.peer_id) == NEW.peer_id
    assert not known.follow(read_credential(SUCCESSOR)), "it is no news a second time"
    assert known.renamed([f"/ip4/192.0.2.1/tcp/1/p2p/{OWNER.peer_id}"]) == (f"/ip4/192.0.2.1/tcp/1/p2p/{NEW.peer_id}",)


def test_who_was_away_for_several_replacements_follows_them_all_and_who_has_a_new_invite_knows_the_old_ones() -> None:
    keys = [OWNER, *(Identity.generate() for _ in range(MOST_SUCCESSIONS))]
    chain = [replaced(one, other) for one, other in pairwise(keys)]
    last = certificate(keys[-1], *chain)
    assert len(last) < CERTIFICATE_LIMIT
    for known in (keys[0], keys[4], keys[-1]):
        coordinators = Coordinators(SWARM, [known.peer_id])
        assert coordinators.follow(read_credential(last))
        assert tuple(coordinators) == (keys[-1].peer_id,)
        assert coordinators.present(OWNER.peer_id) == keys[-1].peer_id


@pytest.mark.parametrize(
    "shown",
    [
        certificate(NEW, replaced(SECOND, NEW)),
        certificate(NEW, replaced(OWNER, NEW, OTHER_SWARM)),
        certificate(NEW, Succession(OWNER.peer_id, NEW.peer_id, NOW, 7, bytes(64))),
        certificate(NEW, Succession(OWNER.peer_id, NEW.peer_id, NOW + 1, 7, replaced(OWNER, NEW).signature)),
        certificate(SECOND, replaced(OWNER, NEW)),
    ],
    ids=["nobody's", "of another swarm", "not signed", "at another time", "another key's"],
)
def test_what_the_old_key_has_not_signed_is_followed_by_nobody(shown: bytes) -> None:
    admission = coordinator_of(OWNER)
    with pytest.raises(Refused):
        admission.check(shown)
    assert tuple(admission.coordinators) == (OWNER.peer_id,)


def test_a_key_that_was_replaced_has_no_say_in_who_replaces_it() -> None:
    admission, thief = coordinator_of(OWNER), Identity.generate()
    admission.trust(SUCCESSOR)
    with pytest.raises(Refused, match="was replaced by"):
        admission.check(certificate(thief, replaced(OWNER, thief)))
    assert tuple(admission.coordinators) == (NEW.peer_id,)
    back = replaced(NEW, OWNER)
    with pytest.raises(Refused, match="leads back"):
        admission.trust(certificate(OWNER, back))


def test_what_the_old_key_has_signed_counts_for_a_while_and_nothing_new_of_it() -> None:
    now = float(NOW)
    _, admission = member_of(OWNER, clock=lambda: now)
    alice, bob = Identity.generate().peer_id, Identity.generate().peer_id
    old = issue_credential(OWNER, SWARM, alice, TOKEN, NOW + 30 * DAY)
    for_ever = issue_credential(OWNER, SWARM, bob, TOKEN, NOW + 300 * DAY)
    new = issue_credential(NEW, SWARM, bob, TOKEN, NOW + 30 * DAY)
    admission.trust(SUCCESSOR)
    assert admission.check(old).peer == alice
    assert admission.check(new).peer == bob
    for shown in (for_ever, authority_certificate(OWNER)):
        with pytest.raises(Refused):
            admission.check(shown)
    admission.ban([Ban.of(OWNER, SWARM, f"peer:{alice}")])
    assert not admission.bans
    assert authority_certificate(OWNER) in admission.authorities, "TLS lets in whom it has enrolled"
    now += FORMER_SECONDS + 1
    assert admission.authorities == (SUCCESSOR,)
    assert admission.coordinators.may_plan(OWNER.peer_id, 7)
    assert not admission.coordinators.may_plan(OWNER.peer_id, 8)
    assert admission.coordinators.may_plan(NEW.peer_id, 8)


def test_bans_stay_when_the_key_that_signed_them_is_replaced_and_give_way_to_the_new_ones() -> None:
    subject = "peer:a"
    _, admission = member_of(OWNER)
    old, new = Ban.of(OWNER, SWARM, subject), Ban.of(NEW, SWARM, subject)
    admission.ban([old])
    admission.trust(SUCCESSOR)
    assert admission.bans == {subject: old}
    admission.ban([new])
    assert admission.bans == {subject: new}
    _, restarted = member_of(OWNER)
    restarted.trust(SUCCESSOR)
    restarted.ban([old])
    assert not restarted.bans, "the old key bans nobody any more"
    restarted.recall([old])
    assert restarted.bans, "but for what this peer has believed before"


def test_a_certificate_in_whatever_way_it_comes_is_enough_to_learn_of_the_new_key() -> None:
    told = []
    identity, admission = member_of(OWNER)
    admission.when_changed(lambda: told.append(1))
    assert admission.check(SUCCESSOR, NEW.peer_id).peer == NEW.peer_id
    assert told
    assert SUCCESSOR in admission.authorities
    assert admission.check(admission.certificate).peer == identity.peer_id


def test_certificates_of_old_and_new_keys_are_taken_in_any_order() -> None:
    own = issue_credential(NEW, SWARM, SECOND.peer_id, TOKEN, NOW + DAY)
    for authorities in ((authority_certificate(OWNER), SUCCESSOR), (SUCCESSOR, authority_certificate(OWNER))):
        for known in (OWNER, NEW):
            admission = Admission(SWARM, [known.peer_id], own, authorities)
            assert set(admission.authorities) == set(authorities)
        with pytest.raises(Refused):
            Admission(SWARM, [SECOND.peer_id], own, authorities)


def test_a_pin_holds_the_new_key_once_it_was_seen_and_no_members() -> None:
    known = Coordinators(SWARM, [OWNER.peer_id])
    known.check_pin(SUCCESSOR, OWNER.peer_id)
    known.check_pin(authority_certificate(OWNER), OWNER.peer_id)
    assert tuple(known) == (OWNER.peer_id,), "nothing is noted"
    known.follow(read_credential(SUCCESSOR))
    known.check_pin(SUCCESSOR, OWNER.peer_id)
    thief = Identity.generate()
    for shown in (
        None,
        authority_certificate(OWNER),
        certificate(thief, replaced(OWNER, thief)),
        issue_credential(NEW, SWARM, thief.peer_id, TOKEN, NOW + DAY),
    ):
        with pytest.raises(Refused):
            known.check_pin(shown, OWNER.peer_id)


def test_a_kick_is_told_once_and_the_peer_stays_a_member() -> None:
    identity, admission = member_of(OWNER)
    kicked: list[str] = []
    admission.when_kicked(kicked.append)
    for at in (1.0, 1.0, 0.5, 2.0):
        admission.kick(identity.peer_id, at)
    assert kicked == [identity.peer_id] * 2
    assert admission.check(admission.certificate).peer == identity.peer_id
