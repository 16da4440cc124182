"""The bases of every message and file: frozen, with one-line errors; only some let unknown keys pass."""

from difflib import get_close_matches
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dtfm_protocol.errors import UserError


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
            raise UserError(f"{what}: {first_fault(error)}{_meant(cls, error)}") from None


class Message(Schema):
    """The base of what travels between programs that may be of unlike versions: keys that are not known are ignored.

    So a later version may say more. What binds, or decides what is computed (a job, a plan, an epoch, a promise, a
    vote, a commit, a manifest), is a `Schema`: half understood, it would be understood wrongly.
    """

    model_config = ConfigDict(extra="ignore")


def _meant(schema: type[BaseModel], error: ValidationError) -> str:
    """Return the key that a misspelt one may have been meant for, in words; "" where none is near."""
    fault = next((one for one in error.errors(include_url=False) if one["type"] == "extra_forbidden"), None)
    if fault is None:
        return ""
    *outer, wrong = map(str, fault["loc"])
    for name in outer:
        inner = schema.model_fields[name].annotation if name in schema.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ""
        schema = inner
    near = get_close_matches(wrong, schema.model_fields, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def first_fault(error: ValidationError) -> str:
    """Describe the first fault of a pydantic error as `key.path: reason` on one line.

    An unknown key goes first: a key that is missing beside it is most likely the same one, misspelt.
    """
    faults = error.errors(include_url=False)
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    where = ".".join(str(part) for part in fault["loc"])
    reason = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        reason = "unknown key"
    elif fault["type"] == "missing":
        reason = "this key is missing"
    elif fault["type"] not in {"value_error", "model_type"} and isinstance(
        fault.get("input"), int | float | str | bool
    ):
        reason = f"{reason} (got {fault['input']!r})"
    return f"{where}: {reason}" if where else reason
