"""The signed envelope: what comes out is what its sender put in, or it is refused."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.control.messages import Phase, Presence, Report
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.envelope import LIMIT, Post, read_body, signable
from dtfm_protocol.identity.keys import Identity

SWARM = "0123456789abcdef"
ALICE, BOB = Identity.generate(), Identity.generate()
HELLO = Presence(online=True, session="s")


def post(identity: Identity = ALICE, swarm: str = SWARM) -> Post:
    return Post(swarm, identity, clock=lambda: 12.5)


def sealed(swarm: str = SWARM) -> bytes:
    return post(swarm=swarm).seal("presence", HELLO)


def signed_by_hand(identity: Identity, payload: Any) -> bytes:
    """An envelope whose signature is good, whatever its payload is."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    signature = base64.b64encode(identity.sign(b"dtfm/1/envelope:" + text.encode())).decode()
    return json.dumps({"sender": identity.peer_id, "payload": text, "signature": signature}).encode()


def test_a_letter_comes_out_as_it_was_put_in() -> None:
    letter = post(BOB).open(sealed(), "presence")
    assert (letter.sender, letter.kind, letter.at) == (ALICE.peer_id, "presence", 12.5)
    assert read_body(letter, Presence) == HELLO


@given(text=st.text(max_size=100), step=st.integers(0, 1 << 40), lost=st.lists(st.text(max_size=20), max_size=3))
@settings(max_examples=50)
def test_any_body_survives(text: str, step: int, lost: list[str]) -> None:
    report = Report(session="s", state="training", text=text, step=step, lost=tuple(lost))
    assert read_body(post(BOB).open(post().seal("report", report), "report"), Report) == report


@given(data=st.data())
@settings(max_examples=300)
def test_no_changed_byte_goes_unseen(data: st.DataObject) -> None:
    """Every byte counts but blanks between JSON's marks: a change is refused, or changes nothing that is said."""
    good = sealed()
    at = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))
    try:
        letter = post(BOB).open(bytes(changed), "presence")
    except Refused:
        return
    assert letter == post(BOB).open(good, "presence")


@given(data=st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        post().open(data, "presence")


@given(cut=st.integers(0, len(sealed()) - 1))
def test_a_cut_envelope_is_refused(cut: int) -> None:
    with pytest.raises(Refused, match="not an envelope"):
        post().open(sealed()[:cut], "presence")


def test_another_sender_under_the_same_signature_is_refused() -> None:
    outer = json.loads(sealed())
    outer["sender"] = BOB.peer_id
    with pytest.raises(Refused, match="signature is not"):
        post().open(json.dumps(outer).encode(), "presence")
    outer["sender"] = "nobody"
    with pytest.raises(Refused, match="is not a peer id"):
        post().open(json.dumps(outer).encode(), "presence")


def test_a_message_of_another_swarm_is_refused() -> None:
    with pytest.raises(Refused, match="another swarm"):
        post().open(sealed("f" * 16), "presence")


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(Refused, match="of kind 'presence' where 'plan' belongs"):
        post().open(sealed(), "plan")


def test_an_oversized_envelope_is_refused_before_it_is_read() -> None:
    padded = sealed() + b" " * (LIMIT + 1 - len(sealed()))
    with pytest.raises(Refused, match="more than an envelope may have"):
        post().open(padded, "presence")
    assert post().open(padded[:-1], "presence").sender == ALICE.peer_id


@pytest.mark.parametrize("signature", ["", "AAAA", "not base64!", "é", "A" * 200])
def test_what_is_no_signature_is_refused(signature: str) -> None:
    outer = json.loads(sealed())
    outer["signature"] = signature
    with pytest.raises(Refused):
        post().open(json.dumps(outer).encode(), "presence")


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        {"swarm": SWARM, "kind": "presence", "at": 1.0},
        {"swarm": SWARM, "kind": "presence", "at": 1.0, "body": [], "more": 1},
        {"swarm": SWARM, "kind": "presence", "at": float("nan"), "body": {}},
        {"swarm": SWARM, "kind": "presence", "at": float("inf"), "body": {}},
        {"swarm": SWARM, "kind": "presence", "at": 1.0, "body": []},
    ],
)
def test_a_well_signed_payload_that_is_no_message_is_refused(payload: object) -> None:
    with pytest.raises(Refused, match="the payload is not a message"):
        post().open(signed_by_hand(BOB, payload), "presence")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"online": True},
        {"online": True, "session": "s", "more": 1},
        {"online": "perhaps", "session": "s"},
        {"online": True, "session": "s" * 65},
    ],
)
def test_a_body_that_does_not_fit_its_schema_is_refused(body: dict[str, Any]) -> None:
    payload = {"swarm": SWARM, "kind": "presence", "at": 1.0, "body": body}
    letter = post().open(signed_by_hand(BOB, payload), "presence")
    with pytest.raises(Refused, match="presence: "):
        read_body(letter, Presence)


def test_a_plans_signature_opens_no_envelope() -> None:
    """The two uses of a key sign under prefixes of their own."""
    payload = json.dumps({"swarm": SWARM, "kind": "presence", "at": 1.0, "body": {}})
    signature = base64.b64encode(ALICE.sign(b"dtfm/1/document:" + payload.encode())).decode()
    outer = {"sender": ALICE.peer_id, "payload": payload, "signature": signature}
    with pytest.raises(Refused, match="signature is not"):
        post().open(json.dumps(outer).encode(), "presence")


def test_what_is_signed_does_not_depend_on_the_order_of_keys() -> None:
    assert signable({"a": 1, "b": [2]}) == signable({"b": [2], "a": 1})
    assert signable({"a": 1, "b": [2]}) != signable({"a": 1, "b": [3]})


def test_a_message_says_when_it_was_made() -> None:
    ticks = iter([1.0, 2.0])
    writer = Post(SWARM, ALICE, clock=lambda: next(ticks))
    ats = [post().open(writer.seal("phase", Phase(name="done", text="")), "phase").at for _ in range(2)]
    assert ats == [1.0, 2.0]
