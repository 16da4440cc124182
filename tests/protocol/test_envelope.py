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
from dtfm_protocol.identity.message_counter import MessageCounter

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
    assert (letter.sender, letter.kind, letter.at, letter.will) == (ALICE.peer_id, "presence", 12.5, 0)
    assert read_body(letter, Presence) == HELLO


printing = st.text(max_size=20).filter(str.isprintable)


@given(text=printing, step=st.integers(0, (1 << 32) - 1), lost=st.lists(printing, max_size=3))
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
    with pytest.raises(Refused, match="more than such an envelope may have"):
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
        {"swarm": SWARM, "kind": "presence", "at": 1.0, "body": {}},
        {"swarm": SWARM, "kind": "presence", "at": 1.0, "counter": 1, "body": []},
        {"swarm": SWARM, "kind": "presence", "at": 1.0, "counter": -1, "body": {}},
        {"swarm": SWARM, "kind": "presence", "at": 1.0, "counter": 1 << 63, "body": {}},
        {"swarm": SWARM, "kind": "presence", "at": 1.0, "counter": 1.5, "body": {}},
        {"swarm": SWARM, "kind": "presence", "at": float("nan"), "counter": 1, "body": {}},
        {"swarm": SWARM, "kind": "presence", "at": float("inf"), "counter": 1, "body": {}},
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
        {"online": "perhaps", "session": "s"},
        {"online": True, "session": "s" * 65},
    ],
)
def test_a_body_that_does_not_fit_its_schema_is_refused(body: dict[str, Any]) -> None:
    payload = {"swarm": SWARM, "kind": "presence", "at": 1.0, "counter": 1, "body": body}
    letter = post().open(signed_by_hand(BOB, payload), "presence")
    with pytest.raises(Refused, match="presence: "):
        read_body(letter, Presence)


def test_what_a_later_version_says_beside_is_ignored_and_breaks_no_signature() -> None:
    body = {"online": True, "session": "s", "mood": "good"}
    payload = {"swarm": SWARM, "kind": "presence", "at": 1.0, "counter": 7, "body": body, "more": [1]}
    letter = post().open(signed_by_hand(BOB, payload), "presence")
    assert (letter.counter, read_body(letter, Presence)) == (7, HELLO)


def test_a_promise_that_a_later_version_worded_otherwise_is_refused_and_not_half_understood() -> None:
    """What binds is understood as a whole or not at all."""
    standing = {"promise": {"version": 1, "unless": "it rains"}}
    body = {"session": "s", "state": "idle", "standing": standing}
    payload = {"swarm": SWARM, "kind": "report", "at": 1.0, "counter": 7, "body": body}
    with pytest.raises(Refused, match="report: "):
        read_body(post().open(signed_by_hand(BOB, payload), "report"), Report)


def test_a_fault_in_a_strangers_words_is_told_without_them() -> None:
    body = {"session": "s", "state": "idle", "lost": ["\x1b[2J"]}
    payload = {"swarm": SWARM, "kind": "report", "at": 1.0, "counter": 7, "body": body}
    with pytest.raises(Refused) as caught:
        read_body(post().open(signed_by_hand(BOB, payload), "report"), Report)
    assert str(caught.value).isprintable()


def test_each_envelope_has_a_higher_number_than_the_one_before() -> None:
    writer = post()
    numbers = [post().open(writer.seal("presence", HELLO), "presence").counter for _ in range(3)]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    early = writer.number()
    later = post().open(writer.seal("presence", HELLO, will=early), "presence")
    will = post().open(writer.seal("presence", HELLO, counter=early), "presence")
    assert (later.will, will.counter) == (early, early)
    assert will.counter < later.counter


def test_who_hears_a_number_of_its_own_goes_on_after_it() -> None:
    """Its disk was restored, and its clock set back."""
    ahead = Post(SWARM, ALICE, counter=MessageCounter(5_000_000, clock=lambda: 0.0)).seal("presence", HELLO)
    behind = Post(SWARM, ALICE, counter=MessageCounter(clock=lambda: 0.0))
    heard = behind.open(ahead, "presence").counter
    assert behind.number() == heard + 1
    other = Post(SWARM, BOB, counter=MessageCounter(clock=lambda: 0.0))
    other.open(ahead, "presence")
    assert other.number() == 1, "what others have used is nothing to it"


def test_a_plans_signature_opens_no_envelope() -> None:
    """The two uses of a key sign under prefixes of their own."""
    payload = json.dumps({"swarm": SWARM, "kind": "presence", "at": 1.0, "counter": 1, "body": {}})
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
