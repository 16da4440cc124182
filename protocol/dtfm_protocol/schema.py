"""The bases of every message and file: frozen, with one-line errors; only some let unknown keys pass.

How formats may change. A coordinator and a node one minor version apart work together (`process.version_agreement`),
so two nodes of one swarm may be two apart. A minor version, therefore,

- may add a field to a `Message`, with a default that says what was so before it: who does not know it ignores it;
- may add a value to a `Literal` of a `Message` where the field has a `Fallback`, as which older readers take it;
- may add a type of a state's tensors which a state has only under such a job as who does not know the type refuses;
- may add a field to a vote or a commit which is there only under such a job, or such a plan, as who does not know it
  refuses;
- may add a key to the job's tables, or a field to a plan, with a default that says what was so before it. Who does not
  know it trains without it. If that would compute something else, the key is `NEEDED`: a document in which it is set
  names it in `needs`, and is refused under that name by whoever does not know it. A new value of a `Literal` there (a
  codec, a schedule) is refused by name anyway;
- keeps for two minor versions what it has no use for any more;
- changes nothing else: no other `Schema` that is sent, no field's name, form or bounds, no topic, no service, nothing
  that is signed. Those are for a major version, which has another `PROTOCOL_VERSION`.

What is not known is dropped within the limits that hold for what is known. A plan is an exception, for its signature is
over all of its fields, and it is handed on: it keeps those that it does not know as they came, and a new field is left
out (`exclude_if`) where it has its default, as in a plan of an older author.
`tests/protocol/test_evolution.py` holds the formats to those of the minor version before.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Final, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from dtfm_protocol.errors import UserError
from dtfm_protocol.validation_words import plain


class Schema(BaseModel):
    """The base of messages and files: a frozen value that refuses unknown keys, NaN and infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def read(cls, value: Any, what: str) -> Self:
        """Validate `value` as this schema; `what` names it in the error, e.g. "job.toml".

        Raises:
            UserError: `value` does not fit; the message names the first key that is wrong.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise UserError(f"{what}: {faults_in_words(cls, error)[0]}") from None


class Message(Schema):
    """The base of what travels between programs that may be of unlike versions: keys that are not known are ignored.

    So a later version may say more. What binds, or decides what is computed (a job, a plan, an epoch, a promise, a
    vote, a commit, a manifest), is a `Schema`: half understood, it would be understood wrongly. Of a job and of a plan
    their authors say what must be understood (`needs`).
    """

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class Fallback:
    """The value as which a message's field is read whose own is not known here: `Annotated[Literal[..], Fallback(..)]`.

    A later version may add only such values as do no harm when they are taken for this one.
    """

    value: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the field's own schema, within one that reads other text as `value`."""

        def read(found: Any, known: ValidatorFunctionWrapHandler) -> Any:
            try:
                return known(found)
            except ValidationError:
                if isinstance(found, str):
                    return self.value
                raise

        return core_schema.no_info_wrap_validator_function(read, handler(source))


@dataclass(frozen=True)
class Needed:
    """The mark of a key that changes what is computed; put it into the key's `Annotated[...]`."""


NEEDED: Final = Needed()
_SHOULD: Final = "should be "
"""What is said of most wrong values begins with."""
_KIND: Final = re.compile(r"literal\[.*\]|constrained-\w+|int|float|str|bool")
"""Names that pydantic puts behind the key of a value that may be of several kinds."""
MOST_NEEDS = 64
Needs = Annotated[tuple[Annotated[str, Field(max_length=128)], ...], Field(max_length=MOST_NEEDS)]
"""Keys of a document that its readers must know."""


def needs_of(document: BaseModel) -> tuple[str, ...]:
    """Return the keys that are set in a document, other than to their defaults, and that its readers must know: with
    dots, as "training.learning_rate"."""
    found = list[str]()
    for name, field in type(document).model_fields.items():
        value = getattr(document, name)
        if NEEDED in field.metadata:
            if value != field.get_default(call_default_factory=True):
                found.append(name)
        elif isinstance(value, BaseModel):
            found += [f"{name}.{inner}" for inner in needs_of(value)]
    return tuple(found)


def field_of(schema: type[BaseModel], key: str) -> Any:
    """Return the `FieldInfo` of a key with dots; None where the schema has none of that name."""
    name, _, rest = key.partition(".")
    field = schema.model_fields.get(name)
    if field is None or not rest:
        return field
    inner = field.annotation
    return field_of(inner, rest) if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def check_needs(schema: type[BaseModel], needs: object) -> None:
    """Check that a document's readers know all that it says they must.

    Raises:
        ValueError: they do not; it names the keys.
    """
    names = needs if isinstance(needs, list | tuple) else ()
    if unknown := [str(name)[:128] for name in names if field_of(schema, str(name)) is None]:
        raise ValueError(f"it needs {', '.join(unknown[:8])}, which this version of dtfm does not know")


def known_part(schema: type[BaseModel], values: Any) -> Any:
    """Return of JSON values what `schema`, and the tables in it, have keys for; what is no object as it is."""
    if not isinstance(values, dict):
        return values
    fields = {name: schema.model_fields[name].annotation for name in values if name in schema.model_fields}
    return {
        name: known_part(inner, values[name])
        if isinstance(inner, type) and issubclass(inner, BaseModel)
        else values[name]
        for name, inner in fields.items()
    }


def faults_in_words(schema: type[BaseModel], error: ValidationError) -> list[str]:
    """Return all faults of a pydantic error as `key.path: reason`, each on one line, in the order of `first_fault`; of
    an unknown key also which may have been meant."""
    return [_in_words(faults) + _meant(schema, faults[0]) for faults in _ranked(error)]


def _meant(schema: type[BaseModel], fault: ErrorDetails) -> str:
    """Return the key that an unknown one may have been meant for, or all that there are, in words; "" where neither
    can be said, or the fault is another one."""
    if fault["type"] != "extra_forbidden":
        return ""
    *outer, wrong = map(str, fault["loc"])
    for name in outer:
        if name.isdecimal():  # the place in a list whose schema was entered with the list
            continue
        inner = _schema_in(schema.model_fields[name].annotation) if name in schema.model_fields else None
        if inner is None:
            return ""
        schema = inner
    return _nearest(schema, wrong) or f"; the keys here are {', '.join(_keys(schema))}"


def _schema_in(kind: Any) -> type[BaseModel] | None:
    """Return the schema of a field's value, or of the items of a list; None: it has none."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for one in get_args(kind) if (found := _schema_in(one)) is not None), None)


def _keys(schema: type[BaseModel]) -> list[str]:
    """Return the keys of a schema as files and messages have them."""
    return [
        alias if isinstance(alias := field.validation_alias, str) else name
        for name, field in schema.model_fields.items()
    ]


def _nearest(schema: type[BaseModel], key: str) -> str:
    near = get_close_matches(key, _keys(schema), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_key(schema: type[BaseModel], key: str) -> str:
    """Return what is said of a key that `schema` does not have."""
    return f"{key}: unknown key{_nearest(schema, key)}"


def first_fault(error: ValidationError) -> str:
    """Describe the first fault of a pydantic error as `key.path: reason` on one line.

    An unknown key goes first: a key that is missing beside it is most likely the same one, misspelt.
    """
    return _in_words(_ranked(error)[0])


def _ranked(error: ValidationError) -> list[list[ErrorDetails]]:
    """Return the faults, unknown keys first; those of one value that may be of several kinds, none of which it is, are
    one fault to people, and stand together."""
    groups = dict[tuple[object, ...], list[ErrorDetails]]()
    for number, fault in enumerate(error.errors(include_url=False)):
        place = _place(fault)
        groups.setdefault((place,) if place != fault["loc"] else (place, number), []).append(fault)
    return sorted(groups.values(), key=lambda faults: faults[0]["type"] != "extra_forbidden")


def _place(fault: ErrorDetails) -> tuple[int | str, ...]:
    """Return the keys that lead to a fault, without pydantic's name of the kind that was tried, of several."""
    *keys, last = fault["loc"] or ("",)
    if fault["type"] not in {"extra_forbidden", "missing"} and isinstance(last, str) and _KIND.fullmatch(last):
        return tuple(keys)
    return fault["loc"]


def _in_words(faults: list[ErrorDetails]) -> str:
    fault = faults[0]
    where = ".".join(str(part) for part in _place(fault))
    reason = plain(str(fault["msg"]))
    if fault["type"] == "extra_forbidden":
        reason = "unknown key"
    elif fault["type"] == "missing":
        reason = "this key is missing"
    elif fault["type"] == "string_pattern_mismatch" and fault["loc"] == ("name",):
        reason = f"use letters, digits, dots, dashes and underscores, a letter or digit first (got {fault['input']!r})"
    elif fault["type"] == "model_type":
        reason = f"keys and their values are wanted here (got {str(fault['input'])[:40]!r})"
    elif fault["type"] != "value_error":
        reason = _wanted(faults)
        if isinstance(fault.get("input"), int | float | str | bool):
            reason = f"{reason} (got {fault['input']!r})"
    return f"{where}: {reason}" if where else reason


def _wanted(faults: list[ErrorDetails]) -> str:
    """Return what a value should be: any of what it was tried as."""
    *some, last = (one for fault in faults for one in _kinds(fault))
    wanted = f"{', '.join(some)} or {last}" if some else last
    return f"{_SHOULD}{wanted}" if plain(faults[0]["msg"]).startswith(_SHOULD) else wanted


def _kinds(fault: ErrorDetails) -> list[str]:
    if fault["type"] == "literal_error":
        return str(fault["ctx"]["expected"]).replace(" or ", ", ").split(", ")
    return [plain(fault["msg"]).removeprefix(_SHOULD)]
