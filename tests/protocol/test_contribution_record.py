"""A contribution record is a coordinator's word on one member, and nobody else's, however it is turned."""

import json

import pytest
from pydantic import ValidationError

from dtfm_protocol.control.contribution_record import RECORD_LIMIT, STATEMENT_LIMIT, ContributionRecord
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import authority_certificate, issue_credential, read_credential
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import Identity
from tests.harness.contributions import record_of, statement_of
from tests.harness.membership import OTHER_SWARM, OWNER, SWARM, TOKEN

ALICE, BOB, NEW = Identity.generate(), Identity.generate(), Identity.generate()
KNOWN = Coordinators(SWARM, [OWNER.peer_id])


def test_what_a_coordinator_has_signed_is_read_back_from_a_file() -> None:
    record = ContributionRecord.parsed(record_of(ALICE.peer_id).model_dump_json(indent=1).encode())
    assert record.said_of(ALICE.peer_id, SWARM, KNOWN) == statement_of(ALICE.peer_id)
    assert record.said_by(OWNER.peer_id) == statement_of(ALICE.peer_id)


def test_what_a_later_version_states_besides_is_signed_and_not_minded() -> None:
    text = json.dumps(json.loads(statement_of(ALICE.peer_id).model_dump_json()) | {"medals": 3})
    signature = OWNER.sign(b"dtfm/1/contribution:" + text.encode()).hex()
    record = record_of(ALICE.peer_id).model_copy(update={"statement": text, "signature": signature})
    assert record.said_of(ALICE.peer_id, SWARM, KNOWN) == statement_of(ALICE.peer_id)


def test_who_alters_a_record_has_none() -> None:
    """A number, the member, or who is said to have signed it."""
    record = record_of(ALICE.peer_id)
    for before, after in (("411", "4110"), (ALICE.peer_id, BOB.peer_id)):
        with pytest.raises(Refused, match="signature is not"):
            record.model_copy(update={"statement": record.statement.replace(before, after)}).opened()
    with pytest.raises(Refused, match="signature is not"):
        record.model_copy(update={"certificate": authority_certificate(NEW).hex()}).opened()


def test_a_member_cannot_make_one() -> None:
    """Neither with its own key as a coordinator's, nor with the credential that the coordinator has signed."""
    minted = record_of(ALICE.peer_id, ALICE)
    with pytest.raises(Refused, match="who does not coordinate this swarm"):
        minted.said_of(ALICE.peer_id, SWARM, KNOWN)
    with pytest.raises(Refused, match="not of the coordinator"):
        minted.said_by(OWNER.peer_id)
    credential = issue_credential(OWNER, SWARM, ALICE.peer_id, TOKEN, 2e9)
    with pytest.raises(Refused, match="by a member"):
        minted.model_copy(update={"certificate": credential.hex()}).opened()


def test_the_record_of_another_member_or_swarm_is_not_this_ones() -> None:
    record = record_of(ALICE.peer_id)
    with pytest.raises(Refused, match=f"of {ALICE.peer_id[-6:]}, not of {BOB.peer_id[-6:]}"):
        record.said_of(BOB.peer_id, SWARM, KNOWN)
    with pytest.raises(Refused, match="of another swarm"):
        record.said_of(ALICE.peer_id, OTHER_SWARM, Coordinators(OTHER_SWARM, [OWNER.peer_id]))


def test_the_key_that_took_the_coordinators_place_signs_and_the_former_one_does_no_more() -> None:
    """Who knows the first key alone can check it, for the record says whose place was taken, and by whose word."""
    certificate = authority_certificate(NEW, (Succession.made(OWNER, SWARM, NEW.peer_id, 5, 1),))
    record = ContributionRecord.signed(statement_of(ALICE.peer_id), NEW, certificate)
    assert record.said_by(OWNER.peer_id) == record.said_by(NEW.peer_id) == statement_of(ALICE.peer_id)
    known = Coordinators(SWARM, [OWNER.peer_id])
    with pytest.raises(Refused):
        record.said_of(ALICE.peer_id, SWARM, known)
    known.follow(read_credential(certificate))
    assert record.said_of(ALICE.peer_id, SWARM, known).steps == 411
    with pytest.raises(Refused, match="who does not coordinate this swarm"):
        record_of(ALICE.peer_id).said_of(ALICE.peer_id, SWARM, known)


def test_a_succession_of_another_swarm_or_by_nobody_makes_no_coordinator() -> None:
    for succession in (
        Succession.made(OWNER, OTHER_SWARM, NEW.peer_id, 5, 1),
        Succession(OWNER.peer_id, NEW.peer_id, 5, 1, bytes(64)),
    ):
        certificate = authority_certificate(NEW, (succession,))
        record = ContributionRecord.signed(statement_of(ALICE.peer_id), NEW, certificate)
        with pytest.raises(Refused):
            record.said_by(OWNER.peer_id)


def test_what_is_too_large_or_no_record_is_refused_in_one_line() -> None:
    whole = record_of(ALICE.peer_id).model_dump_json().encode()
    for wrong in (b"", b"{}", b"\xff", whole[:-1], whole + b" " * RECORD_LIMIT):
        with pytest.raises(UserError, match="no contribution record"):
            ContributionRecord.parsed(wrong)
    with pytest.raises(ValidationError):
        ContributionRecord(statement="x" * (STATEMENT_LIMIT + 1), signature="0" * 128, certificate="00")


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": ((0, 9),)},
        {"layers": ((4, 5), (0, 1))},
        {"layers": ((3, 2),)},
        {"last_step": 2},
        {"share": 1.1},
        {"tokens": -1},
        {"seconds": float("inf")},
    ],
)
def test_a_statement_that_cannot_be_is_none(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        statement_of(ALICE.peer_id, **wrong)
