"""Amendments of a job: which of its values may change while it trains, and what they become. Pure."""

from collections.abc import Iterable, Mapping
from operator import not_
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import BaseModel, Field, model_validator

from dtfm_protocol.bounds import MOST_AMOUNT, MOST_UINT32, Label, Time
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Job, Planning, Training
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.schema import NEEDED, Needs, Schema, field_of

MOST_AMENDMENTS = 1024
"""Amendments that a run may have: all of them go along with each plan."""
MOST_VALUES = 32
"""Values that one amendment may change."""
_TRAINED = "what is kept of a state, and moved with it, is what is trained from the first step on"
FIXED = {
    "training.sequence_length": "the text was cut into windows of that length",
    "training.precision": "what was measured of each machine holds for one precision",
    "training.weights": "the state so far was kept so",
    "training.seed": "the order of the text follows from it",
    "training.method": _TRAINED,
    "training.layers": _TRAINED,
    "training.lora.r": "its matrices were made with it",
    "training.lora.lora_alpha": "its matrices were trained with it",
    "training.lora.target_modules": _TRAINED,
    "training.lora.base": "its matrices were trained beside those in that form",
    "training.optimizer": "what was kept beside each weight so far was made by it",
    "training.betas": "the moments' bias is counted by them from the first step on",
}
"""Keys of tables that may change otherwise, and why these may not."""
T = TypeVar("T", bound=Schema)
_TABLES: dict[str, type[Schema]] = {
    "training": Training,
    "evaluation": Evaluation,
    "plan": Planning,
    "checkpoint": Checkpointing,
}


def _keys(prefix: str, table: type[BaseModel]) -> Iterable[str]:
    for name, field in table.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys(f"{prefix}.{name}", inner)
        else:
            yield f"{prefix}.{name}"


_FIELDS = {
    key: field_of(table, key.removeprefix(f"{prefix}."))
    for prefix, table in _TABLES.items()
    for key in _keys(prefix, table)
}
"""Each key of those tables, and its field."""
KEYS = tuple(key for prefix, table in _TABLES.items() for key in _keys(prefix, table) if key not in FIXED)
"""Keys that may change while a job trains, as the job file has them."""
Value = (
    bool
    | Annotated[int, Field(ge=-MOST_UINT32, le=MOST_UINT32)]
    | Annotated[float, Field(ge=-MOST_AMOUNT, le=MOST_AMOUNT)]
    | Label
)
"""New value; what its key allows is narrower."""
Values = dict[Label, Value]
"""New values by key."""


class Amendment(Schema):
    """A change of a job's values from a step on, as plans carry it."""

    number: Annotated[int, Field(ge=1, le=MOST_AMENDMENTS)]
    """Place among the amendments of the run, from 1."""
    from_step: Annotated[int, Field(ge=1, le=MOST_UINT32)]
    """The first step for which it holds."""
    values: Annotated[Values, Field(min_length=1, max_length=MOST_VALUES)]
    """New values by the job file's keys, e.g. "training.learning_rate"."""
    at: Time = 0.0
    """Unix seconds when the owner asked for it."""
    needs: Needs = Field(default=(), exclude_if=not_)
    """Those of its keys that its readers must know; else they refuse it."""

    @model_validator(mode="after")
    def _is_understood(self) -> Self:
        if unknown := [key for key in self.needs if not is_known(key)]:
            raise ValueError(f"it needs {', '.join(unknown[:8])}, which this version of dtfm does not know")
        return self

    @property
    def known(self) -> "Values":
        """Its new values but for those of keys that this version does not know, and need not."""
        return {key: value for key, value in self.values.items() if is_known(key)}

    def __hash__(self) -> int:
        return hash((self.number, self.from_step, self.at))

    def __str__(self) -> str:
        return f"{spoken(self.values)} from step {self.from_step}"


class Settings(NamedTuple):
    """The tables of a job that may change, as they are for one step."""

    training: Training
    evaluation: Evaluation
    plan: Planning
    checkpoint: Checkpointing

    @classmethod
    def of(cls, job: ResolvedJob | Job) -> Self:
        """Return those with which the job begins."""
        evaluation = job.evaluation.told if isinstance(job, Job) else job.evaluation
        return cls(job.training, evaluation, job.plan, job.checkpoint)

    def get(self, key: str) -> Any:
        """Return the value of one of `KEYS`."""
        table, *path = key.split(".")
        found = getattr(self, table)
        for name in path:
            found = getattr(found, name)
        return found

    def amended(self, values: Mapping[str, Value]) -> Self:
        """Return these with new values. More steps alone leave the learning rate's schedule where it is.

        Raises:
            UserError: a key may not change, or a value does not fit.
        """
        changed = {name: table.model_dump() for name, table in zip(_TABLES, self, strict=True)}
        if values.get("training.steps", self.training.steps) != self.training.steps:
            changed["training"]["schedule_end"] = self.training.last_decay
        for key, value in values.items():
            check_key(key)
            table, *path, last = key.split(".")
            inner = changed[table]
            for name in path:
                inner = inner[name]
            inner[last] = value
        return type(self)(
            _read("training", Training, changed),
            _read("evaluation", Evaluation, changed),
            _read("plan", Planning, changed),
            _read("checkpoint", Checkpointing, changed),
        )

    @property
    def of_a_plan(self) -> tuple[Any, ...]:
        """The values on which layouts and messages rest: where one changes, another plan has to follow."""
        training, plan = self.training, self.plan.model_copy(update={"horizon": 0.0})
        return training.global_batch, training.micro_batch, self.evaluation.sequences, plan


def _read(name: str, table: type[T], values: dict[str, dict[str, Any]]) -> T:
    try:
        return table.read(values[name], name)
    except UserError as error:
        raise UserError(str(error).replace(f"{name}: ", f"{name}.", 1)) from None


def is_known(key: str) -> bool:
    """Whether a key is one of the job file as this version knows it, or at least none of a table that may change: a
    later version may have more keys there."""
    table, _, _ = key.partition(".")
    return key in _FIELDS or table not in _TABLES


def needed(values: Iterable[str]) -> tuple[str, ...]:
    """Return those of the keys that whoever is to train with them must know."""
    return tuple(key for key in values if key in _FIELDS and NEEDED in _FIELDS[key].metadata)


def check_key(key: str) -> None:
    """Check that a key of the job file may change while the job trains.

    Raises:
        UserError: it may not, or there is none of that name; it says why, and what to do.
    """
    if key in KEYS:
        return
    table, _, name = key.partition(".")
    why = FIXED.get(key)
    if why is None and table in {"name", "model", "data"}:
        why = "the weights and the text are those of another job then"
    if why is not None:
        raise UserError(
            f"{key} cannot change while a job trains: {why}; `dtfm-coordinator fork` begins a new job with the weights "
            "of this one"
        )
    alike = [known for known in KEYS if known.endswith(f".{name or key}")]
    hint = f"did you mean {alike[0]}?" if alike else f"keys are {', '.join(KEYS)}"
    raise UserError(f"{key}: the job file has no such key; {hint}")


def spoken(values: Mapping[str, Value]) -> str:
    """Return values by key in a line for people: "training.steps = 2000, plan.schedule = gpipe"."""
    return ", ".join(f"{key} = {as_written(value)}" for key, value in values.items())


def as_written(value: Value) -> str:
    """Return a value as the job file has it, words without their quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)
