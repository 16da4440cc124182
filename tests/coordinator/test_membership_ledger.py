"""The ledger of the membership: who may enter with which invite, and what of it outlives its writers."""

import json
from pathlib import Path

import pytest

from dtfm_coordinator.membership.ledger_file import NAME, LedgerFile
from dtfm_coordinator.membership.membership_ledger import (
    MOST_OF_AN_ADDRESS,
    Banned,
    Invited,
    Kicked,
    LedgerEntry,
    MembershipLedger,
    Redeemed,
    Revoked,
)
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.enrolment import EnrolmentRequest, new_challenge
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import OWNER, SWARM

NOW, END = 1_000_000.0, 2_000_000
COORDINATORS = Coordinators(SWARM, [OWNER.peer_id])


def request(token: EntryToken, identity: Identity | None = None) -> EnrolmentRequest:
    return EnrolmentRequest.make(identity or Identity.generate(), SWARM, token, new_challenge())


def token(uses: int = 1, expires: int = END, by: Identity = OWNER) -> EntryToken:
    return EntryToken.issue(by, SWARM, uses, expires)


def enter(ledger: MembershipLedger, wanted: EnrolmentRequest, now: float = NOW, address: str = "192.0.2.1") -> str:
    entry = ledger.admit(wanted, COORDINATORS, address, now)
    ledger.add(entry)
    return entry.peer


def test_an_invite_lets_as_many_in_as_it_is_for_and_each_of_them_again() -> None:
    ledger, two = MembershipLedger(), token(uses=2)
    first, second = request(two), request(two)
    assert enter(ledger, first) == first.peer
    enter(ledger, second, NOW + 1)
    with pytest.raises(Refused, match=r"was for 2 machines, which have entered"):
        enter(ledger, request(two))
    enter(ledger, first, END + 1.0)  # a new credential, though the invite is of no use any more
    assert set(ledger.users(two.id)) == {first.peer, second.peer}


@pytest.mark.parametrize(
    ("wanted", "entries", "why"),
    [
        (token(expires=int(NOW) - 1), [], "has expired"),
        (token(by=Identity.generate()), [], "another swarm's"),
    ],
)
def test_an_invite_that_does_not_count_lets_nobody_in(wanted: EntryToken, entries: list[LedgerEntry], why: str) -> None:
    ledger = MembershipLedger()
    for entry in entries:
        ledger.add(entry)
    with pytest.raises(Refused, match=why):
        enter(ledger, request(wanted))


def test_an_invite_that_was_taken_back_lets_nobody_else_in() -> None:
    ledger, many = MembershipLedger(), token(uses=9)
    member = request(many)
    enter(ledger, member)
    ledger.add(Revoked(token=many.id))
    with pytest.raises(Refused, match="was taken back"):
        enter(ledger, request(many))
    enter(ledger, member)


def test_who_asks_again_and_again_adds_one_entry_a_day() -> None:
    ledger, one = MembershipLedger(), request(token())
    enter(ledger, one)
    before = ledger.members[one.peer]
    enter(ledger, one, NOW + 3600)
    assert ledger.members[one.peer] == before
    enter(ledger, one, NOW + 90_000)
    assert ledger.members[one.peer].at == NOW + 90_000


def test_who_is_banned_comes_back_neither_with_a_new_invite_nor_with_a_new_key() -> None:
    ledger, old, new = MembershipLedger(), token(uses=9), token()
    bad = Identity.generate()
    enter(ledger, request(old, bad))
    for subject in (f"peer:{bad.peer_id}", f"token:{old.id}"):
        ledger.add(Banned(ban=Ban.of(OWNER, SWARM, subject)))
    for wanted in (request(old, bad), request(new, bad), request(old)):
        with pytest.raises(Refused, match="banned"):
            enter(ledger, wanted)
    enter(ledger, request(new))


def test_one_address_does_not_make_members_without_end() -> None:
    ledger, many = MembershipLedger(), token(uses=1000)
    for _ in range(MOST_OF_AN_ADDRESS):
        enter(ledger, request(many))
    with pytest.raises(Refused, match="from this address today"):
        enter(ledger, request(many))
    enter(ledger, request(many), address="192.0.2.2")
    enter(ledger, request(many), NOW + 86_401)


def test_entries_of_two_coordinators_give_the_same_ledger_in_any_order() -> None:
    entries: list[LedgerEntry] = [
        Invited(token="0" * 16, uses=1, expires=END, name="Ada"),
        Redeemed(token="0" * 16, peer="a", at=1.0),
        Redeemed(token="0" * 16, peer="a", at=2.0),
        Revoked(token="0" * 16),
        Kicked(peer="a", at=3.0),
        Kicked(peer="a", at=1.0),
        Banned(ban=Ban.of(OWNER, SWARM, "peer:a")),
    ]
    one, other = MembershipLedger(), MembershipLedger()
    for entry in entries:
        one.add(entry)
    for entry in (*reversed(entries), *entries):
        other.add(entry)
    assert one == other


def test_what_is_written_is_there_again_and_others_see_it(tmp_path: Path) -> None:
    serving, command = LedgerFile(tmp_path), LedgerFile(tmp_path)
    command.append(Invited(token="0" * 16, uses=1, expires=END))
    assert serving.take_up() == [Invited(token="0" * 16, uses=1, expires=END)]
    serving.append(Redeemed(token="0" * 16, peer="a", at=1.0))
    assert [entry.kind for entry in command.take_up()] == ["invited", "redeemed"]
    assert LedgerFile(tmp_path).ledger == command.ledger
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_a_line_that_was_cut_off_is_no_entry_and_the_next_one_counts(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path)
    file.append(Revoked(token="0" * 16))
    with (tmp_path / NAME).open("ab") as torn:
        torn.write(b'{"kind": "revo')
    file = LedgerFile(tmp_path)
    assert file.ledger.revoked == {"0" * 16}
    file.append(Revoked(token="1" * 16))
    assert LedgerFile(tmp_path).ledger.revoked == {"0" * 16, "1" * 16}
    assert [json.loads(line)["kind"] for line in (tmp_path / NAME).read_text().splitlines()] == ["revoked"] * 2


def test_rubbish_in_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"kind": "king"}\n')
    with pytest.raises(UserError, match="a line that is none of a membership ledger"):
        LedgerFile(tmp_path)


def test_an_invite_for_one_node_says_whose_it_is_and_one_for_many_does_not() -> None:
    ledger = MembershipLedger()
    for token, uses in (("0" * 16, 1), ("1" * 16, 2)):
        ledger.add(Invited(token=token, uses=uses, expires=9.0, name=f"for {uses}"))
        ledger.add(Redeemed(token=token, peer=f"peer {uses}", at=1.0))
    assert ledger.names() == {"peer 1": "for 1"}
