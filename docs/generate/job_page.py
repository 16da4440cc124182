"""Page of the job file: every key with its unit, default, and what it means, from the schema of a job."""

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs.generate.docstrings import field_texts, summary
from docs.generate.markdown import code, page, paragraph, table
from dtfm_protocol.job.amendment import KEYS
from dtfm_protocol.job.job_file import Job, Training

UNITS = {
    "name": "",
    "model.architecture": "",
    "model.path": "folder",
    "model.hub": "",
    "model.revision": "",
    "data.text": "files",
    "data.sources": "",
    "data.sources[].path": "files",
    "data.sources[].kind": "",
    "data.sources[].format": "",
    "data.sources[].split": "",
    "data.sources[].subset": "",
    "data.sources[].revision": "",
    "data.sources[].column": "",
    "data.sources[].template": "",
    "data.sources[].weight": "",
    "data.sources[].on_error": "",
    "data.tokenizer": "",
    "data.chat_template": "file",
    "data.packing": "",
    "training.steps": "steps",
    "training.global_batch": "sequences",
    "training.micro_batch": "sequences",
    "training.sequence_length": "tokens",
    "training.learning_rate": "",
    "training.method": "",
    "training.layers": "layers",
    "lora.r": "",
    "lora.base": "",
    "lora.lora_alpha": "",
    "lora.target_modules": "",
    "training.schedule": "",
    "training.schedule_end": "step",
    "training.schedule_floor": "",
    "training.schedule_decay": "steps",
    "training.weight_decay": "",
    "training.weight_decay_on": "",
    "training.optimizer": "",
    "training.betas": "",
    "training.eps": "",
    "training.momentum": "",
    "training.warmup_steps": "steps",
    "training.clip_norm": "",
    "training.precision": "",
    "training.weights": "",
    "training.offload": "",
    "training.seed": "",
    "evaluation.every": "steps",
    "evaluation.sequences": "sequences",
    "evaluation.sets": "",
    "evaluation.sets[].name": "",
    "evaluation.sets[].text": "files",
    "evaluation.sets[].sources": "",
    "plan.stages": "stages",
    "plan.replicas": "nodes",
    "plan.strict": "",
    "plan.schedule": "",
    "plan.in_flight": "",
    "plan.parts": "",
    "plan.wire.activations": "",
    "plan.wire.gradients": "",
    "plan.slow_wire": "",
    "plan.horizon": "seconds",
    "checkpoint.every": "steps",
    "checkpoint.shadow": "steps",
    "sharing.model": "",
    "sharing.license": "",
}
"""Unit of each key's value; "": it has none."""


class JobKey(NamedTuple):
    """A key of the job file."""

    key: str
    """The key with its table, e.g. "training.steps"; of a list's entries, as "data.sources[].path"."""
    field: FieldInfo
    text: str
    """What it means."""


def job_keys(schema: type[BaseModel] = Job, prefix: str = "") -> Iterator[JobKey]:
    """Yield all keys of a job file, in the order of the file; those of inner tables at their table's place."""
    texts = field_texts(schema)
    for name, field in schema.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            # The file has this one as a table of its own (`Job`).
            yield from job_keys(inner, "lora." if name == "lora" else f"{prefix}{name}.")
        else:
            yield JobKey(prefix + name, field, texts[name])
            # A list within a list's entry has entries that were told of before.
            if (entry := _entry(inner)) is not None and not prefix.endswith("[]."):
                yield from job_keys(entry, f"{prefix}{name}[].")


def _entry(kind: Any) -> type[BaseModel] | None:
    """Return the schema of a list's entries; None: it is no list, or one of plain values."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for one in get_args(kind) if (found := _entry(one)) is not None), None)


def job_page() -> str:
    """Return the page. Raises KeyError where a key has no unit, or none is of that name."""
    found = {one.key: one for one in job_keys()}
    if unknown := UNITS.keys() ^ found.keys():
        raise KeyError(f"UNITS and the job file differ in {', '.join(sorted(unknown))}")
    tables: dict[str, list[JobKey]] = {}
    for one in found.values():
        entry, inside, _ = one.key.partition("[].")
        name = entry + "[]" if inside else one.key.partition(".")[0] if "." in one.key else ""
        tables.setdefault(name, []).append(one)
    about = (
        "A job file says what is trained, in TOML. A key that is none is refused, with the one that may be meant; "
        "`dtfm-coordinator check` finds all mistakes and says what the job takes. *Later* says whether "
        "`dtfm-coordinator set` may [change the key while the run trains](../how-to/change.md)."
    )
    example = "[examples/demo.toml](../../examples/demo.toml) is a whole one; [how to train on your own text]"
    return page(
        "The job file",
        paragraph(about),
        paragraph(f"{example}(../how-to/own_data.md) goes through the choices."),
        *(_table(name, keys) for name, keys in tables.items()),
    )


def _table(name: str, keys: list[JobKey]) -> str:
    if name.endswith("[]"):
        said = f"### An entry of `{name.removesuffix('[]')}`\n"
    else:
        said = f"## The table `[{name}]`\n{paragraph(_about(name))}\n\n" if name else ""
    rows = (
        [code(one.key.removeprefix(f"{name}.")), _kind(one.field), UNITS[one.key], _default(one.field), one.text]
        + (["yes" if one.key in KEYS else ""] if name in {"training", "evaluation", "plan", "checkpoint"} else [])
        for one in keys
    )
    head = ["key", "value", "unit", "default", "meaning"]
    return said + table([*head, "later"] if keys[0].key in KEYS else head, rows)


def _about(name: str) -> str:
    fields = Training.model_fields if name == "lora" else Job.model_fields
    text = summary(fields[name].annotation).partition(": ")[2]  # type: ignore[arg-type]
    return text[0].upper() + text[1:]


def _kind(field: FieldInfo) -> str:
    return _said(field.annotation)


def _said(kind: Any) -> str:
    """Return a type in words."""
    arguments = [one for one in get_args(kind) if one is not type(None)]
    origin = get_origin(kind)
    if origin is not None and origin.__name__ == "Literal":
        return " or ".join(f'"{one}"' for one in arguments)
    if origin is not None and origin.__name__ == "Annotated":
        return _said(arguments[0])
    if origin is tuple and Ellipsis not in arguments:
        return f"[{', '.join(map(_said, arguments))}]"
    if origin in {list, tuple}:
        return "a list of tables" if _entry(kind) is not None else "a list of texts"
    if arguments:
        return " or ".join(_said(one) for one in arguments)
    return {"int": "whole number", "float": "number", "bool": "true or false", "str": "text", "Path": "text"}[
        kind.__name__
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.default
    if value is None:
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple):
        return code(str(list(value)))
    return code(f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else value)
