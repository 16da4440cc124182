"""The invite: one line that survives being copied, and says in one line what is wrong when it did not."""

import base64
import hashlib
import json
import textwrap
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import PROTOCOL_VERSION, Invite
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import OTHER_SWARM, OWNER, invite_of

INVITE = invite_of(host="192.0.2.1")
LINE = INVITE.encode()

swarms = st.text("0123456789abcdef", min_size=16, max_size=16)


def invites_to(swarm: str) -> st.SearchStrategy[Invite]:
    return st.builds(
        Invite,
        swarm=st.just(swarm),
        coordinator=st.text(max_size=128),
        dht=st.lists(st.text(max_size=60), min_size=1, max_size=4).map(tuple),
        entrance=st.builds("{}:{}".format, st.from_regex(r"[^\s/]{1,40}", fullmatch=True), st.integers(0, 65535)),
        broker=st.none() | st.tuples(st.sampled_from(["mqtt://", "mqtts://"]), st.text(max_size=40)).map("".join),
        token=st.builds(EntryToken.issue, *map(st.just, (OWNER, swarm)), st.integers(1, 9999), st.integers(0, 1 << 39)),
        broker_ca=st.none() | st.text(max_size=2000),
    )


def line_of(data: bytes, version: int = PROTOCOL_VERSION) -> str:
    """A line with a checksum that fits, whatever its body is."""
    body = base64.urlsafe_b64encode(data).decode().rstrip("=")
    return f"dtfm{version}.{body}.{hashlib.sha256(body.encode()).hexdigest()[:8]}"


def complaint(text: str) -> str:
    with pytest.raises(UserError) as caught:
        Invite.decode(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(invite=swarms.flatmap(invites_to))
@settings(max_examples=60, deadline=None)
def test_what_is_encoded_is_decoded(invite: Invite) -> None:
    line = invite.encode()
    assert Invite.decode(line) == invite
    assert line.isascii()
    assert line.split() == [line]


def test_an_invite_is_short_enough_for_a_chat() -> None:
    assert len(LINE) < 600


@given(width=st.integers(20, 90), indent=st.sampled_from(["", "  ", "\t", "> ", "> > "]))
def test_line_wrapping_and_mail_quotes_do_no_harm(width: int, indent: str) -> None:
    lines = textwrap.wrap(LINE, width, break_on_hyphens=False)
    assert len(lines) > 1
    assert Invite.decode("\r\n".join(indent + line for line in lines) + "\n") == INVITE


@pytest.mark.parametrize("form", ["  {}\n\n", '"{}"', "'{}'", "`{}`", "<{}>", "\u00a0{}\u2003", '\n "{}" \n'])
def test_blanks_and_quotes_around_it_do_no_harm(form: str) -> None:
    assert Invite.decode(form.format(LINE)) == INVITE


@pytest.mark.parametrize(
    "form", ["dtfm-node join {}", "  dtfm-node  join\t{}\n", "'dtfm-node join {}'", "dtfm-node join '{}'"]
)
def test_the_whole_line_that_an_owner_sends_does_no_harm(tmp_path: Path, form: str) -> None:
    assert Invite.decode(form.format(LINE)) == INVITE
    (tmp_path / "invite.txt").write_text(form.format(LINE), encoding="utf-8")
    assert Invite.decode(f"@{tmp_path / 'invite.txt'}") == INVITE
    assert "is cut short" in complaint(form.format(LINE[:-9]))
    assert "is not an invite" in complaint("dtfm-node join")


@given(cut=st.integers(0, len(LINE) - 1))
def test_a_truncated_invite_says_so(cut: int) -> None:
    text = complaint(LINE[:cut])
    wanted = "is cut short or damaged" if cut >= len("dtfm1.") else "is not an invite"
    assert wanted in text
    assert "copy the whole line" in text


@given(at=st.integers(len("dtfm1."), len(LINE) - 1), letter=st.sampled_from("abcXYZ019_-.!é"))
def test_a_changed_letter_is_noticed(at: int, letter: str) -> None:
    if LINE[at] != letter:
        assert "is cut short or damaged" in complaint(LINE[:at] + letter + LINE[at + 1 :])


@pytest.mark.parametrize(
    "text",
    ["", "hello", "https://example.org/dtfm1.abc", "dtfm", "dtfm1", "dtfmx.abc.00000000", "🙂", LINE[1:], "\0" * 9],
)
def test_foreign_text_is_not_an_invite(text: str) -> None:
    assert "is not an invite" in complaint(text)


@given(text=st.text(max_size=60).filter(lambda text: not text.startswith("@")))
def test_any_text_is_refused_in_one_line(text: str) -> None:
    complaint(text)


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 9999])
def test_an_invite_of_another_protocol_version_names_both(version: int) -> None:
    text = complaint(line_of(zlib.compress(b"{}"), version))
    assert f"for protocol version {version} and this program speaks {PROTOCOL_VERSION}" in text
    assert "install the version" in text


@pytest.mark.parametrize(
    "data",
    [
        b"no zlib",
        zlib.compress(b""),
        zlib.compress(b"no json"),
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        zlib.compress(INVITE.model_dump_json().encode())[:-20],
        zlib.compress(b"[" * 60_000),
        zlib.compress(b'"\xff\xfe"'),
    ],
)
def test_a_body_that_says_nothing_of_a_swarm_is_refused(data: bytes) -> None:
    assert "does not say what an invite says" in complaint(line_of(data))


@pytest.mark.parametrize(
    "change",
    [
        {"swarm": "0123"},
        {"swarm": "0123456789ABCDEF"},
        {"secret": "0" * 32},
        {"token": {}},
        {"token": INVITE.token.model_dump() | {"uses": 2}},
        {"token": INVITE.token.model_dump() | {"expires": INVITE.token.expires + 1}},
        {"token": EntryToken.issue(OWNER, OTHER_SWARM, 1, 1 << 33).model_dump()},
        {"token": INVITE.token.model_dump() | {"by": Identity.generate().peer_id}},
        {"entrance": "192.0.2.1"},
        {"entrance": "192.0.2.1:65536"},
        {"entrance": "192.0.2.1:99999"},
        {"entrance": "mqtt://192.0.2.1:7700"},
        {"dht": []},
        {"broker": "http://192.0.2.1"},
        {"coordinator": "x" * 129},
        {"more": 1},
    ],
)
def test_a_field_that_does_not_fit_is_refused(change: dict[str, object]) -> None:
    values = json.dumps(json.loads(INVITE.model_dump_json(exclude_defaults=True)) | change)
    assert "does not say what an invite says" in complaint(line_of(zlib.compress(values.encode())))


def test_a_bomb_is_refused_without_being_blown_up() -> None:
    values = INVITE.model_dump(mode="json") | {"broker_ca": "a" * (64 << 20)}
    bomb = line_of(zlib.compress(json.dumps(values).encode(), 1))
    del values
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        assert "does not say what an invite says" in complaint(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * len(bomb) + (4 << 20)


def test_an_invite_may_lie_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "invite.txt"
    path.write_text(f"{LINE}\n", encoding="utf-8")
    assert Invite.decode(f"@{path}") == INVITE


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.txt") in complaint(f"@{tmp_path / 'none.txt'}")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    assert "cannot read the invite" in complaint(f"@{tmp_path / 'image.png'}")


def test_service_names_are_those_of_one_swarm_and_the_same_with_every_token_and_do_not_give_it_away() -> None:
    service = INVITE.service("training")
    assert service != INVITE.model_copy(update={"swarm": OTHER_SWARM}).service("training")
    assert service != INVITE.service("probe")
    assert INVITE.swarm in service
    assert service == invite_of().service("training"), "members of two invites do not find each other"
    assert not any(secret in service for secret in (INVITE.token.id, INVITE.token.signature))
