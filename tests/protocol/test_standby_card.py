"""The card: how a second coordinator introduces itself, and what the first one's signature on it is worth."""

import base64
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.credential import CERTIFICATE_LIMIT, authority_certificate
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from tests.harness.membership import invite_of

SWARM, OTHER_SWARM = "0123456789abcdef", "fedcba9876543210"
FIRST, SECOND, THIRD, STRANGER = (Identity.generate() for _ in range(4))


def card_of(identity: Identity, host: str) -> StandbyCard:
    address = f"/ip4/{host}/tcp/7701/p2p/{identity.peer_id}"
    certificate = authority_certificate(identity).hex()
    return StandbyCard(peer=identity.peer_id, certificate=certificate, entrance=f"{host}:7700", dht=(address,))


CARD = card_of(SECOND, "192.0.2.2")
LINE = CARD.encode()
INVITE = invite_of(FIRST, SWARM, host="192.0.2.1")

cards = st.builds(
    StandbyCard,
    peer=st.text(max_size=128),
    certificate=st.binary(min_size=1, max_size=CERTIFICATE_LIMIT).map(bytes.hex),
    entrance=st.builds("{}:{}".format, st.from_regex(r"[^\s/]{1,40}", fullmatch=True), st.integers(0, 65535)),
    broker=st.none() | st.tuples(st.sampled_from(["mqtt://", "mqtts://"]), st.text(max_size=40)).map("".join),
    dht=st.lists(st.text(max_size=60), min_size=1, max_size=8).map(tuple),
)


def complaint(text: str) -> str:
    with pytest.raises(UserError) as caught:
        StandbyCard.decode(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def line_of(data: bytes) -> str:
    """A line with a checksum that fits, whatever its body is."""
    body = base64.urlsafe_b64encode(data).decode().rstrip("=")
    return f"dtfmcard2.{body}.{hashlib.sha256(body.encode()).hexdigest()[:8]}"


@given(card=cards)
@settings(max_examples=60, deadline=None)
def test_what_is_encoded_is_decoded(card: StandbyCard) -> None:
    line = card.encode()
    assert StandbyCard.decode(line) == card
    assert line.isascii()
    assert line.split() == [line]


@pytest.mark.parametrize("form", ["  {}\n\n", '"{}"', "\u00a0<{}>\r\n"])
def test_blanks_quotes_and_line_breaks_from_copying_do_no_harm(form: str) -> None:
    assert StandbyCard.decode(form.format(f"{LINE[:40]}\n  {LINE[40:]}")) == CARD


@given(cut=st.integers(0, len(LINE) - 1))
def test_a_truncated_card_is_refused_in_one_line(cut: int) -> None:
    assert "is not a card: copy the whole line" in complaint(LINE[:cut])


@given(at=st.integers(0, len(LINE) - 1), letter=st.sampled_from("abcXYZ019_-.!é"))
def test_a_changed_letter_is_noticed(at: int, letter: str) -> None:
    if LINE[at] != letter:
        assert "is not a card" in complaint(LINE[:at] + letter + LINE[at + 1 :])


@given(text=st.text(max_size=60))
def test_any_text_is_refused_in_one_line(text: str) -> None:
    complaint(text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b"{}",
        b"[" * 60_000,
        b'"\xff\xfe"',
        b"\xff\xfe",
        CARD.model_dump_json().encode()[:-1],
        CARD.model_copy(update={"broker": "http://192.0.2.2"}).model_dump_json().encode(),
        CARD.model_copy(update={"entrance": "192.0.2.2"}).model_dump_json().encode(),
        CARD.model_copy(update={"entrance": "192.0.2.2:65536"}).model_dump_json().encode(),
        CARD.model_copy(update={"certificate": ""}).model_dump_json().encode(),
        CARD.model_copy(update={"certificate": "rubbish"}).model_dump_json().encode(),
        CARD.model_copy(update={"certificate": "00" * (CERTIFICATE_LIMIT + 1)}).model_dump_json().encode(),
        CARD.model_copy(update={"dht": ()}).model_dump_json().encode(),
        CARD.model_copy(update={"dht": ("a",) * 9}).model_dump_json().encode(),
        CARD.model_copy(update={"peer": "x" * 129}).model_dump_json().encode(),
    ],
)
def test_a_body_that_introduces_nobody_is_refused_in_one_line(data: bytes) -> None:
    assert "is not a card" in complaint(line_of(data))


def test_an_invite_is_not_a_card_and_a_card_no_invite() -> None:
    assert "is not a card" in complaint(INVITE.encode())
    with pytest.raises(UserError, match="is not an invite"):
        Invite.decode(LINE)


def test_an_appointment_holds_for_its_card_its_swarm_and_its_signer_alone() -> None:
    appointed = AppointedStandby.appoint(CARD, SWARM, FIRST)
    appointed.verify(SWARM, FIRST.peer_id)
    strangers = {"certificate": authority_certificate(STRANGER).hex()}
    changed = [
        appointed.model_copy(update={"card": CARD.model_copy(update=change)})
        for change in ({"broker": "mqtts://192.0.2.9:7700"}, {"entrance": "192.0.2.9:7700"}, strangers)
    ]
    for standby, swarm, first in (
        (appointed, OTHER_SWARM, FIRST),
        (appointed, SWARM, STRANGER),
        *((one, SWARM, FIRST) for one in changed),
        (appointed.model_copy(update={"signature": "0" * 128}), SWARM, FIRST),
        (AppointedStandby.appoint(CARD, SWARM, SECOND), SWARM, FIRST),
    ):
        with pytest.raises(Refused):
            standby.verify(swarm, first.peer_id)


def with_standbys(*standbys: AppointedStandby) -> Invite:
    return INVITE.model_copy(update={"standbys": standbys})


def test_an_invite_lists_coordinators_and_doors_the_first_ones_first() -> None:
    third = card_of(THIRD, "192.0.2.3")
    invite = with_standbys(*(AppointedStandby.appoint(card, SWARM, FIRST) for card in (CARD, third)))
    for found in (invite, Invite.decode(invite.encode())):
        assert found == invite
        assert found.coordinators == (FIRST.peer_id, SECOND.peer_id, THIRD.peer_id)
        assert found.doors == (*INVITE.dht, *CARD.dht, *third.dht)
    assert INVITE.coordinators == (FIRST.peer_id,)
    assert INVITE.doors == INVITE.dht


@pytest.mark.parametrize(
    "standby",
    [
        AppointedStandby.appoint(CARD, SWARM, SECOND),
        AppointedStandby.appoint(CARD, SWARM, STRANGER),
        AppointedStandby.appoint(CARD, OTHER_SWARM, FIRST),
        AppointedStandby.appoint(CARD, SWARM, FIRST).model_copy(update={"card": card_of(STRANGER, "192.0.2.2")}),
    ],
    ids=["by itself", "by a stranger", "for another swarm", "for another coordinator"],
)
def test_an_invite_with_a_standby_that_the_first_coordinator_did_not_sign_is_refused(standby: AppointedStandby) -> None:
    """Whoever changes an invite on its way must not become a coordinator by it."""
    good = AppointedStandby.appoint(card_of(THIRD, "192.0.2.3"), SWARM, FIRST)
    with pytest.raises(UserError, match="does not say what an invite says") as caught:
        Invite.decode(with_standbys(good, standby).encode())
    assert "\n" not in str(caught.value)


def test_an_invite_with_two_standbys_is_short_enough_for_a_chat() -> None:
    cards = (CARD, card_of(THIRD, "192.0.2.3"))
    assert len(with_standbys(*(AppointedStandby.appoint(card, SWARM, FIRST) for card in cards)).encode()) < 1600
