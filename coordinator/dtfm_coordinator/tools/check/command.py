"""Command `check`: asks for the findings about a job file, prints them, and says whether it can be served."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtfm_coordinator.tools.check.forecast import Forecast, forecasts
from dtfm_coordinator.tools.check.job_findings import JobFindings, job_findings
from dtfm_coordinator.tools.check.job_mistakes import lenient_job
from dtfm_coordinator.tools.check.job_screen import device_gb, show
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job, Precision
from dtfm_protocol.view.view import View

MACHINES = (1, 2, 4, 8, 16)
"""Numbers of machines for which hours are forecast unless others are asked for."""


@dataclass(frozen=True)
class HomeMachines:
    """The machines on which hours are forecast, made up elsewhere."""

    view: Callable[[int], View]
    """Makes the network of so many machines."""
    in_words: Callable[[Precision], str]
    """What each of them is for a job in a precision, in words."""


def check(
    path: Path,
    homes: HomeMachines,
    machines: tuple[int, ...] | None = None,
    *,
    as_json: bool = False,
    evaluations: int | None = None,
) -> bool:
    """Print what a job file means; return whether it can be served.

    Args:
        machines: numbers of machines for which hours are forecast; None: those of `MACHINES` that suffice.
        evaluations: number of layouts that each forecast's search may look at; None: searches take seconds.

    Raises:
        UserError: the job file cannot be read, and people are to be told so.
    """
    try:
        job, mistakes = lenient_job(path)
        if job is None:
            raise UserError("; ".join([f"{path}: {mistakes[0]}", *mistakes[1:]]))
    except UserError as error:
        if not as_json:
            raise
        print(json.dumps({"mistakes": [" ".join(str(error).split())]}))
        return False
    found = job_findings(job, _settled, _measured, mistakes, _weighed)
    precision = job.training.precision
    ahead = _forecast(found, machines, homes.view, evaluations)
    if as_json:
        print(json.dumps(as_dictionary(found, ahead, homes.in_words(precision))))
    else:
        from dtfm_protocol.process.console import console

        show(console(), found, ahead, homes.in_words(precision))
    return not found.mistakes


def as_dictionary(found: JobFindings, ahead: tuple[Forecast, ...], machine: str) -> dict[str, Any]:
    """Return the findings as plain values for scripts: bytes, tokens, seconds and hours, all in full."""
    model, text = found.model, found.text
    return {
        "job": found.job.name,
        "model": None
        if model is None
        else asdict(model)
        | {
            "by_depth": [
                asdict(needs) | {"device_gigabytes": device_gb(needs.recomputed_bytes)} for needs in model.by_depth
            ],
            "smallest_device_gigabytes": device_gb(model.smallest_stage_bytes),
        },
        "text": None if text is None else asdict(text),
        "sets": None if found.sets is None else [asdict(one) for one in found.sets],
        "home_machine": machine,
        "forecasts": [asdict(one) for one in ahead],
        "notes": list(found.notes),
        "mistakes": list(found.mistakes),
    }


def _settled(job: Job) -> Any:
    from dtfm_coordinator.allocator.job_demand import requirements
    from dtfm_protocol.data.prepare import settled_config

    config = settled_config(job)
    return config["model_type"], requirements(config, job.training)


def _measured(job: Job) -> Any:
    from dtfm_protocol.data.text_check import check_encoding, check_yield
    from dtfm_protocol.data.text_size import text_size

    check_yield(job)
    check_encoding(job)
    return text_size(job.data, seed=job.training.seed, sequence_length=job.training.sequence_length)


def _weighed(job: Job) -> Any:
    from dtfm_protocol.data.set_sizes import set_sizes

    training, evaluation = job.training, job.evaluation
    return set_sizes(job.data, evaluation.sets, training.sequence_length, evaluation.sequences, training.seed)


def _forecast(
    found: JobFindings, machines: tuple[int, ...] | None, view: Callable[[int], View], evaluations: int | None
) -> tuple[Forecast, ...]:
    """Return the forecasts of a job whose model can be placed; none of one that cannot."""
    from dtfm_coordinator.allocator.workload import Workload

    if found.demand is None or found.model is None or found.mistakes:
        return ()
    fewest = found.model.fewest_nodes
    if machines is None:
        machines = tuple(count for count in MACHINES if count >= fewest) or (fewest,)
    work = Workload(found.demand, found.job.training.micro_batches, found.job.plan)
    return forecasts(work, found.job.training.steps, machines, view, evaluations, _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
