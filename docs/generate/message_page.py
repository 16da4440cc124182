"""Page of the messages: topics of the broker, records of the DHT, frames between peers, from their schemas."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.generate.docstrings import field_texts, summary
from docs.generate.markdown import code, page, paragraph, table
from docs.generate.requests import INSIDE, REQUESTS
from docs.generate.usual_fields import usual
from dtfm_protocol.control.messages import TOPICS
from dtfm_protocol.discovery.records import PROFILE_LIMIT, RECORD_LIMIT, LinkReport, Profile
from dtfm_protocol.wire import frames
from dtfm_protocol.wire.frames import HEADER_BYTES, Kind

ELSEWHERE = {"Training", "Evaluation", "Planning", "Checkpointing", "Wire"}
"""Tables of the job file, which has a page of its own."""
ABOUT = """\
What programs of a swarm say to each other. Everything on the broker and the DHT is signed by its sender, in an envelope
with the sender's running number ([why](../explanation/guarantees.md#what-is-old-tells-nothing)); sizes are of the
envelope. Fields are JSON's; where a field has nothing in the column *default*, it must be there."""


def message_page() -> str:
    """Return the page."""
    rows = (
        [
            f"[`{topic.name}{'/PEER' if topic.author == 'peer' else ''}`](#{topic.schema.__name__.lower()})",
            {"coordinator": "the coordinator that leads", "peer": "each member, under its own id"}[topic.author],
            "yes" if topic.retained else "",
            f"{topic.limit:,}",
            summary(topic.schema),
        ]
        for topic in TOPICS.values()
    )
    return page(
        "Messages",
        paragraph(ABOUT),
        "## Topics",
        paragraph("Over MQTT; each name stands behind `dtfm/SWARM/`. Kept: the broker gives newcomers the last one."),
        table(["topic", "who writes", "kept", "bytes at most", "what it is"], rows),
        "## Records of the DHT",
        _records(),
        "## Frames between peers",
        _frames(),
        "## Requests",
        paragraph(
            "Over streams of their own. Each begins with the credential of whoever opens it, but for a newcomer's. "
            "Beside these, members tell each other of bans and new keys, where others are, and how to connect."
        ),
        _requests(),
        "## Fields",
        *(schema_section(kind) for kind in schemas()),
    )


def schemas() -> list[type[BaseModel]]:
    """Return all schemas of messages and records, and those inside them, by name."""
    asked = (kind for request in REQUESTS for kind in request.schemas)
    roots: list[type[BaseModel]] = [*(topic.schema for topic in TOPICS.values()), Profile, LinkReport, *asked, *INSIDE]
    found = {kind for root in roots for kind in _reached(root)}
    return sorted(found, key=lambda kind: kind.__name__)


def schema_section(kind: type[BaseModel]) -> str:
    """Return what a schema is, and a table of its fields."""
    return f"### {kind.__name__}\n{paragraph(summary(kind))}\n\n{schema_table(kind)}"


def schema_table(kind: type[BaseModel]) -> str:
    """Return a table of a schema's fields."""
    rows = (
        [code(key_of(name, field)), type_in_words(field.annotation), _default(_value(field), field.is_required()), text]
        for (name, field), text in zip(kind.model_fields.items(), field_meanings(kind).values(), strict=True)
    )
    return table(["field", "type", "default", "meaning"], rows)


def key_of(name: str, field: FieldInfo) -> str:
    """Return the key of a field, as it stands in files and messages."""
    return field.validation_alias if isinstance(field.validation_alias, str) else name


def field_meanings(kind: type[BaseModel]) -> dict[str, str]:
    """Return what each field of a schema means, by name, in its order."""
    texts = field_texts(kind)
    return {name: texts.get(name) or usual(kind.__name__, name) for name in kind.model_fields}


def type_in_words(kind: Any) -> str:
    """Return a field's type, as people write JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return " or ".join(dict.fromkeys("null" if one is type(None) else type_in_words(one) for one in arguments))
    if origin is None:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind.__name__
        return {"int": "integer", "float": "number", "bool": "boolean", "str": "text", "Any": "any"}[kind.__name__]
    name = getattr(origin, "__name__", str(origin))
    if name == "Annotated":
        return type_in_words(arguments[0])
    if name == "Literal":
        return " or ".join(f'"{one}"' for one in arguments)
    if origin is dict:
        return f"object of {type_in_words(arguments[1])}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"[{', '.join(map(type_in_words, arguments))}]"
    return f"list of {type_in_words(arguments[0])}"


def _value(field: FieldInfo) -> object:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _default(value: object, is_required: bool) -> str:
    if is_required:
        return ""
    if isinstance(value, BaseModel):
        return "the empty one"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return f'"{value}"'
    return {(): "[]", "{}": "{}"}.get(value if value == () else str(value), str(value))


def _records() -> str:
    rows = (
        [f"[`{kind.model_fields['kind'].default}`](#{kind.__name__.lower()})", f"{limit:,}", summary(kind)]
        for kind, limit in ((Profile, PROFILE_LIMIT), (LinkReport, RECORD_LIMIT))
    )
    return table(["record", "bytes at most", "what it is"], rows)


def _requests() -> str:
    rows = (
        [
            code(one.name) if one.name else "",
            one.to,
            one.text,
            ", ".join(f"[{kind.__name__}](#{kind.__name__.lower()})" for kind in one.schemas),
        ]
        for one in REQUESTS
    )
    return table(["service", "who answers", "what for", "messages"], rows)


def _frames() -> str:
    source = Path(str(frames.__file__)).read_text(encoding="utf-8")
    said = dict(re.findall(r"^    ([A-Z]+) = \d+  # (.+)$", source, flags=re.M))
    rows = ([str(kind.value), code(kind.name), said[kind.name]] for kind in Kind)
    about = f"""Over TLS between members, or libp2p where that does not reach. A header of {HEADER_BYTES} bytes says
    which frame it is, of which plan and step, and the size of what follows; what is not due is refused by that."""
    return f"{paragraph(about)}\n\n{table(['kind', 'name', 'what it carries'], rows)}"


def _reached(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield a schema and those inside it that are not described elsewhere."""
    yield kind
    for field in kind.model_fields.values():
        for inner in _schemas(field.annotation):
            if inner.__name__ not in ELSEWHERE:
                yield from _reached(inner)


def _schemas(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for one in get_args(kind):
        yield from _schemas(one)
