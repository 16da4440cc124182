"""The formats of all that travels between programs, as data, and how they may differ from those of the version before.

`python -m tests.protocol.wire_formats` writes those of now to `wire_formats.json`, as the first thing after a minor
version has come out: then they are what the next one is held to.
"""

import json
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypedDict, get_args

from pydantic import BaseModel

from dtfm_node.engine.exchange import Hello
from dtfm_node.engine.reduction_receipts import StepReceipts
from dtfm_node.engine.step_evidence import CastVotes, WantReceipts, WantVotes
from dtfm_node.links.timed_transfers import ProbeRequest, Queued, Swallowed
from dtfm_protocol.checkpoint.transfers import (
    Catalogue,
    Deposit,
    HandIn,
    Parcel,
    Receipt,
    TransferReply,
    WantCatalogue,
    WantPiece,
    WantShard,
)
from dtfm_protocol.control.contribution_record import ContributionRecord, ContributionStatement
from dtfm_protocol.control.member_requests import DeskAnswer, DeskRequest, ModelFile, OfferedModel, WantPart
from dtfm_protocol.control.messages import TOPICS
from dtfm_protocol.discovery.records import Entry
from dtfm_protocol.identity.enrolment import EnrolmentAnswer, EnrolmentRequest
from dtfm_protocol.identity.envelope import _Outer, _Payload
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.plan.ballot import Commit, Vote
from dtfm_protocol.schema import NEEDED, Fallback, Message
from dtfm_protocol.transport.member_news import MemberNews
from dtfm_protocol.transport.simultaneous_open import OutsideAddress
from dtfm_protocol.transport.tls_connections import Endpoint
from dtfm_protocol.transport.whereabouts import ReachedAt

FILE = Path(__file__).with_suffix(".json")
ROOTS: tuple[type[BaseModel], ...] = (
    *(topic.schema for topic in TOPICS.values()), Entry, EnrolmentAnswer, EnrolmentRequest, _Outer, _Payload, Invite,
    Hello, StepReceipts, CastVotes, WantReceipts, WantVotes, ProbeRequest, Queued, Swallowed, Catalogue, Deposit,
    HandIn, Parcel, Receipt, TransferReply, WantCatalogue, WantPiece, WantShard, Commit, Vote, MemberNews,
    OutsideAddress, Endpoint, ReachedAt, ContributionRecord, ContributionStatement, DeskAnswer, DeskRequest, ModelFile,
    OfferedModel, WantPart,
)  # fmt: skip
"""What is sent; what it is made of follows from that."""
GROWING = frozenset({"ResolvedJob", "Training", "Evaluation", "Planning", "Checkpointing", "Corpus", "Plan"})
"""Documents whose new keys are dropped or kept by who does not know them, or refused by name."""
WIDENING = frozenset({"TensorEntry.dtype"})
"""Fields that may have new values, as those come under jobs alone that are refused by who does not know the values."""

CONDITIONAL = frozenset({"Vote.right", "Commit.sets", "Vote.durations", "Commit.durations"})
"""Fields that are there only under jobs, or plans, that are refused by who does not know them; else they are left
out."""


class FieldFormat(TypedDict):
    """The form of a field."""

    required: bool
    form: str
    """JSON schema."""
    fallback: bool
    """Whether values that are not known are read as a known one."""
    needed: bool
    """Whether who does not know it must refuse the document."""
    left_out: bool
    """Whether it is not written where it says nothing."""


class Format(TypedDict):
    """The form of a message, or of a part of one."""

    message: bool
    """Whether unknown keys are ignored in it."""
    fields: dict[str, FieldFormat]


def format_of(schema: type[BaseModel]) -> Format:
    """Return the format of one schema."""
    properties = schema.model_json_schema(ref_template="{model}").get("properties", {})
    fields = {
        name: FieldFormat(
            required=field.is_required(),
            form=json.dumps(_plain(properties[name]), sort_keys=True),
            fallback=any(isinstance(one, Fallback) for one in field.metadata),
            needed=NEEDED in field.metadata,
            left_out=field.exclude_if is not None,
        )
        for name, field in schema.model_fields.items()
    }
    return Format(message=issubclass(schema, Message), fields=fields)


def _plain(schema: Any) -> Any:
    """Return a JSON schema without what is for people, and with one way to write a single value."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _plain(value) for key, value in schema.items() if key not in {"title", "description", "default"}}
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    return kept


def formats() -> dict[str, Format]:
    """Return the formats of all that is sent, and of what that is made of, by name."""
    found: dict[str, type[BaseModel]] = {}
    waiting = list(ROOTS)
    while waiting:
        schema = waiting.pop()
        if schema.__name__ not in found:
            found[schema.__name__] = schema
            for field in schema.model_fields.values():
                waiting += _models(field.annotation)
    return {name: format_of(found[name]) for name in sorted(found)}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for inner in get_args(annotation):
        yield from _models(inner)


def kept() -> dict[str, Format]:
    """Return the formats of the minor version before."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def differences(before: dict[str, Format], now: dict[str, Format]) -> list[str]:
    """List what has changed that a minor version may not change, one line each."""
    found = []
    for name, old in before.items():
        new = now.get(name)
        if new is None:
            found.append(f"{name}: is gone")
            continue
        if new["message"] != old["message"] and old["message"]:
            found.append(f"{name}: refuses unknown keys now")
        for field in sorted({*old["fields"], *new["fields"]}):
            what = list(_changes(name, field, old, old["fields"].get(field), new["fields"].get(field)))
            found += [f"{name}.{field}: {one}" for one in what]
    return found


def _changes(name: str, field: str, within: Format, old: FieldFormat | None, new: FieldFormat | None) -> Iterable[str]:
    if new is None:
        yield "is gone"
    elif old is None:
        if new["required"]:
            yield "must be there, and older programs do not say it"
        elif f"{name}.{field}" in CONDITIONAL:
            if not new["left_out"]:
                yield "is new, and not left out where it has its default"
        elif not within["message"] and name not in GROWING:
            yield "is new where older programs refuse unknown keys"
        elif name == "Plan" and not new["left_out"]:
            yield "is new, and not left out where it has its default"
    else:
        if new["required"] and not old["required"]:
            yield "must be there now"
        if old["fallback"] and not new["fallback"]:
            yield "has no fallback any more"
        may_widen = old["fallback"] or name in GROWING or f"{name}.{field}" in WIDENING
        if not _same(json.loads(old["form"]), json.loads(new["form"]), may_widen=may_widen):
            yield f"has another form: {new['form']} instead of {old['form']}"


def _same(old: Any, new: Any, *, may_widen: bool) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        if old.keys() != new.keys():
            return False
        return all(
            set(old[key]) <= set(new[key]) if key == "enum" and may_widen
            else _same(old[key], new[key], may_widen=may_widen)
            for key in old
        )  # fmt: skip
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_same(a, b, may_widen=may_widen) for a, b in zip(old, new, strict=True))
    return bool(old == new)


if __name__ == "__main__":
    FILE.write_text(json.dumps(formats(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
