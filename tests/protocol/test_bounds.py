"""What others write has bounds: numbers fit where they go, collections end, texts do nothing to a terminal."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dtfm_protocol.bounds import MOST_MICRO_BATCHES, MOST_UINT32, NICKNAME_LIMIT, PeerName, Text, nickname, printable
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.transfers import Catalogue, Deposit, HandIn
from dtfm_protocol.control.messages import (
    LOST_LIMIT,
    ROWS_LIMIT,
    TOPICS,
    Answers,
    Challenge,
    Epoch,
    Ledger,
    MembershipNews,
    Phase,
    Presence,
    ProbeResult,
    ProbeRound,
    Report,
)
from dtfm_protocol.discovery.records import Entry, LinkReport, Profile
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_list import MOST_BANS, MOST_RULINGS
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.credential import CERTIFICATE_LIMIT
from dtfm_protocol.identity.enrolment import EnrolmentAnswer, EnrolmentRequest
from dtfm_protocol.identity.entry_token import MOST_USES, EntryToken
from dtfm_protocol.identity.keys import Identity, called
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Mark, PeerState, Promise
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import set_up
from dtfm_protocol.transport.whereabouts import ReachedAt
from dtfm_protocol.wire.frames import FrameHeader, Key, Kind

HOSTILE = [
    "\x1b[2J\x1b[1;1H",
    "\x07",
    "\x9b31m",
    "a\r\nb",
    "\u202egpj.exe",
    "\u2066x\u2069",
    "\u200b",
    "\x00",
]


class Line(BaseModel):
    """A text and a name."""

    text: Text = ""
    name: PeerName = ""


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_would_act_on_a_terminal_is_shown_without_that_and_a_name_is_refused(text: str) -> None:
    assert Line(text=text).text.isprintable()
    with pytest.raises(ValidationError):
        Line(name=text)


@given(text=st.text(max_size=100))
def test_a_text_that_prints_as_itself_stays_as_it_is(text: str) -> None:
    cleaned = printable(text)
    assert cleaned.isprintable()
    assert len(cleaned) == len(text)
    assert printable(cleaned) == cleaned
    if text.isprintable():
        assert cleaned == text


def test_words_of_any_script_are_left_alone() -> None:
    for text in ("Müller's GPU", "机器一号", "машина", "מחשב", "[/] [bold]"):
        assert Line(text=text, name=text).text == text


@pytest.mark.parametrize("form", ["plain", "json"])
def test_no_line_of_the_log_acts_on_a_terminal(form: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where somebody logs what no schema has looked at."""
    log = logging.getLogger("dtfm")
    before = log.handlers[:], log.level, log.propagate
    try:
        set_up(form)
        for text in HOSTILE:
            log.warning("somebody says %s", text)
    finally:
        log.handlers[:], log.level, log.propagate = before
    said = capsys.readouterr().err
    assert said.count("somebody says") == len(HOSTILE)
    assert all(line.isprintable() for line in said.split("\n"))


@pytest.mark.parametrize("version", [2**32, 2**33, 2**63, -1, 1e300])
def test_a_version_that_no_frame_can_carry_is_not_taken_from_anybody(version: float) -> None:
    for schema, value in (
        (Promise, {"version": version}),
        (Promise, {"accepted": version}),
        (Mark, {"plan": version}),
        (Mark, {"step": version}),
        (Epoch, {"called": version}),
        (Epoch, {"in_force": version}),
        (Report, {"session": "s", "state": "idle", "standing": {"promise": {"version": version}}}),
        (Report, {"session": "s", "state": "idle", "step": version}),
        (Ledger, {"recorded": version, "kept": 0}),
        (Plan, {"version": version, "stages": [[0, 1]], "routes": [["a"]]}),
    ):
        with pytest.raises(ValidationError):
            schema.model_validate(value)


def test_the_greatest_version_and_step_fit_a_frame() -> None:
    mark = Mark(step=MOST_UINT32, plan=MOST_UINT32)
    header = FrameHeader(mark.plan, Key(Kind.VOTE, mark.step, MOST_MICRO_BATCHES), 0)
    assert FrameHeader.parse(header.pack()) == header


ROW = {
    "step": 1, "loss": 1.0, "tokens": 8, "seconds": 0.1, "plan_version": 1, "learning_rate": 1e-3, "grad_norm": 1.0,
    "predicted_seconds": None,
}  # fmt: skip
TOKEN = {"id": "0" * 16, "uses": 1, "expires": 1, "by": "a", "signature": "0" * 128}
BAN = {"subject": "peer:a", "by": "a", "signature": "0" * 128}
RULING = BAN | {"holds": False, "at": 1}
USE = {"token": "0" * 16, "peer": "a", "at": 1.0}
REPORT = {"session": "s", "state": "idle"}
PLAN = {"stages": [[0, 1]], "routes": [["a"]]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Report, REPORT | {"rows": [ROW] * (ROWS_LIMIT + 1)}),
        (Report, REPORT | {"lost": ["a"] * (LOST_LIMIT + 1)}),
        (Report, REPORT | {"session": "s" * 65}),
        (Report, REPORT | {"busy_seconds": 1e10}),
        (Report, REPORT | {"text": "x" * 501}),
        (StepMetrics, ROW | {"loss": 1e60}),
        (StepMetrics, ROW | {"grad_norm": -1.0}),
        (StepMetrics, ROW | {"grad_norm": 1e60}),
        (StepMetrics, ROW | {"tokens": 2**63}),
        (Plan, PLAN | {"routes": [["a"]] * (MOST_MICRO_BATCHES + 1)}),
        (Plan, PLAN | {"routes": [["a" * 129]]}),
        (Plan, PLAN | {"reason": "x" * 501}),
        (Plan, PLAN | {"signature": "0" * 129}),
        (Plan, PLAN | {"resume": {"norm": 1e60}}),
        (EntryToken, TOKEN | {"id": "0" * 17}),
        (EntryToken, TOKEN | {"uses": MOST_USES + 1}),
        (EntryToken, TOKEN | {"expires": 1 << 40}),
        (EntryToken, TOKEN | {"by": "a" * 129}),
        (EntryToken, TOKEN | {"signature": "0" * 129}),
        (Ban, BAN | {"subject": f"peer:{'a' * 121}"}),
        (Ban, BAN | {"signature": "0" * 129}),
        (BanRuling, RULING | {"subject": "king:a"}),
        (BanRuling, RULING | {"at": 0}),
        (MembershipNews, {"rulings": [RULING] * (MOST_RULINGS + 1)}),
        (EnrolmentAnswer, {"rulings": [RULING] * (MOST_RULINGS + 1)}),
        (MembershipNews, {"bans": [BAN] * (MOST_BANS + 1)}),
        (MembershipNews, {"authorities": ["00"] * 17}),
        (MembershipNews, {"authorities": ["00" * (CERTIFICATE_LIMIT + 1)]}),
        (MembershipNews, {"revoked": ["0" * 16] * 4097}),
        (MembershipNews, {"redeemed": [USE] * 10_001}),
        (EnrolmentRequest, {"peer": "a" * 129, "token": TOKEN, "signature": "0" * 128}),
        (EnrolmentRequest, {"peer": "a", "token": TOKEN, "signature": "0" * 130}),
        (EnrolmentAnswer, {"refused": "x" * 501}),
        (EnrolmentAnswer, {"certificate": "00" * (CERTIFICATE_LIMIT + 1)}),
        (EnrolmentAnswer, {"bans": [BAN] * (MOST_BANS + 1)}),
        (ReachedAt, {"addresses": ["/ip4/192.0.2.1"] * 17}),
        (ProbeRound, {"id": 1, "addresses": {"a": ["/ip4/192.0.2.1"] * 17}}),
        (ProbeRound, {"id": -1, "addresses": {}}),
        (Answers, {"to": ["s"] * 257, "session": "s"}),
        (PeerState, {"holdings": [{"mark": {}, "layers": [0, 1]}] * 33}),
        (PeerState, {"holdings": [{"mark": {}, "layers": [0, 1], "norm": -1.0}]}),
        (LinkReport, {"links": {str(n): {"round_trip_ms": 1, "sent_gbps": 1, "received_gbps": 1} for n in range(513)}}),
        (Deposit, {"plan_version": 2**33, "mark": {}, "layers": [0, 1], "size": 1, "sha256": "0" * 64}),
        (HandIn, {"step": 2**33, "plan_version": 1, "stage": 0, "digest": "0" * 64, "eval_loss": None, "size": 0,
                  "sha256": None}),
    ],
)  # fmt: skip
def test_what_has_no_end_is_refused(schema: type[BaseModel], value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        schema.model_validate(value)


def unbounded(schema: dict[str, Any], where: str, whole: dict[str, Any]) -> list[str]:
    """Places of a JSON schema at which a value may be as large as anybody likes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return unbounded(whole["$defs"][name], where, whole) if f"<{name}>" not in where else []
    found = [one for part in schema.get("anyOf", ()) for one in unbounded(part, where, whole)]
    found += [one for part in schema.get("oneOf", ()) for one in unbounded(part, where, whole)]
    match schema.get("type"):
        case "object":
            for name, part in schema.get("properties", {}).items():
                found += unbounded(part, f"{where}.{name}", whole)
            more = schema.get("additionalProperties")
            named = schema.get("propertyNames", {}).get("enum")
            if more and more is not True:
                found += [] if "maxProperties" in schema or named else [where]
                found += unbounded(more, f"{where}.*", whole)
        case "array":
            fixed = schema.get("prefixItems")
            found += [] if fixed or "maxItems" in schema else [where]
            for part in fixed or [schema.get("items", {})]:
                found += unbounded(part, f"{where}[]", whole)
        case "string":
            found += [] if {"maxLength", "enum", "const", "pattern"} & schema.keys() else [where]
        case "integer":
            found += [] if {"maximum", "exclusiveMaximum", "enum", "const"} & schema.keys() else [where]
    return found


@pytest.mark.parametrize(
    "schema",
    [
        *(topic.schema for topic in TOPICS.values()), Presence, Phase, Challenge, ProbeResult, Profile, Entry,
        Catalogue, Deposit, HandIn, Manifest, ResolvedJob, EnrolmentRequest, EnrolmentAnswer, EntryToken, Ban,
        BanRuling, ReachedAt,
    ],
)  # fmt: skip
def test_no_field_of_a_message_is_without_an_end(schema: type[BaseModel]) -> None:
    whole = schema.model_json_schema(by_alias=True)
    assert unbounded(whole, schema.__name__, whole) == []


def test_a_plans_signature_holds_whatever_its_reason_says() -> None:
    """What others read of it is cleaned, and they check the signature with what they have read."""
    owner = Identity.generate()
    plan = Plan.model_validate(PLAN).model_copy(update={"reason": "\x1b[2J" + "x" * 1000})
    signed = plan.signed(owner, "s")
    read = Plan.model_validate(json.loads(signed.model_dump_json()))
    read.verify([owner.peer_id], "s")
    assert read.reason.isprintable()


def test_what_is_said_of_members_is_whole_where_it_has_its_end() -> None:
    """The cases above are refused for what they change, and for nothing else."""
    news = {"authorities": ["00" * CERTIFICATE_LIMIT] * 16, "bans": [BAN], "revoked": ["0" * 16], "redeemed": [USE]}
    MembershipNews.model_validate(news | {"rulings": [RULING]})
    EnrolmentRequest.model_validate({"peer": "a" * 128, "token": TOKEN, "signature": "0" * 128})
    EnrolmentAnswer.model_validate({"certificate": "00" * CERTIFICATE_LIMIT, "bans": [BAN], "rulings": [RULING]})
    ReachedAt.model_validate({"addresses": ["/ip4/192.0.2.1"] * 16})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Ann's PC-2", "Ann's PC-2"), ("  Zoë   ", "Zoë"), ("a\x1b[2Jb", "a2Jb"), ("x (k3xQ9d)", "x k3xQ9d"),
        ("\u202egnp", "gnp"), ("ﬁ", "fi"), ("!?", ""), ("n" * 99, "n" * NICKNAME_LIMIT),
    ],
)  # fmt: skip
def test_a_nickname_holds_nothing_that_could_be_taken_for_something_else(text: str, name: str) -> None:
    """Not for a peer id in brackets, nor for an order to the terminal."""
    assert nickname(text) == name
    assert nickname(name) == name


def test_whoever_takes_anothers_name_is_still_told_apart() -> None:
    assert called("12D3KooWabcdef", "Ann") == "Ann (abcdef)"
    assert called("12D3KooWabcdef", "") == "abcdef"
    assert Presence(online=True, session="s", name="Ann (abcdef)").name == "Ann abcdef"
