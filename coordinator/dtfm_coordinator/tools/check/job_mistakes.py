"""Mistakes of a job file that its schema finds, all of them, and what is left of the job to look for others."""

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.schema import faults_in_words

MOST_ROUNDS = 8
"""Number of times, at most, that a job is read with its mistakes taken out: some hide others."""


def lenient_job(path: Path) -> tuple[Job | None, tuple[str, ...]]:
    """Read a job file with its mistakes taken out; return the rest, or None where too little is left, and the
    mistakes.

    Raises:
        UserError: the file cannot be read, or is no TOML.
    """
    try:
        return Job.load(path), ()
    except UserError:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            values = None
        if values is None:
            raise
    mistakes = dict[str, None]()
    for _ in range(MOST_ROUNDS):
        try:
            return Job.model_validate(values).rooted(path.resolve().parent), tuple(mistakes)
        except ValidationError as error:
            mistakes |= dict.fromkeys(faults_in_words(Job, error))
            taken = [_take_out(values, fault["loc"]) for fault in error.errors(include_url=False)]
            if not all(taken):
                break
    return None, tuple(mistakes)


def _take_out(values: dict[str, Any], place: tuple[int | str, ...]) -> bool:
    """Take what is wrong out of a job's values, or put something harmless in its place; return whether that could
    be done."""
    if place == ("name",):
        values["name"] = "unnamed"
        return True
    if place == ("training",) and isinstance(values["training"], Mapping):  # keys that do not go together
        training = values["training"]
        together = math.gcd(training["global_batch"], training["micro_batch"])
        plain = {"warmup_steps": 0, "schedule": "cosine", "schedule_end": None, "schedule_decay": 0}
        values["training"] = {**training, "micro_batch": together, **plain}
        return True
    if place == ("data",):
        return False  # without it there is no job, which would only be said as well
    table: Any = values
    *outer, key = place
    for name in outer:
        if not isinstance(table, dict) or name not in table:
            return False
        table = table[name]
    return isinstance(table, dict) and table.pop(key, None) is not None
