"""Fork of a run: a job file that begins with the weights of one of its checkpoints."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtfm_coordinator.owner.job_on_disk import JobOnDisk
from dtfm_coordinator.serve.job_edits import NAME as SERVED
from dtfm_coordinator.tools.export import export
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.data_table import Data
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.process.state_dir import check_writable, write_atomically

LONGEST_NAME = 59
"""Characters of a run's name that the name of its fork takes over."""


def fork(run: str, job_file: Path) -> int:
    """Write a checkpoint's weights beside `job_file`, and there a job that begins with them; return its step.

    The optimizer's moments stay behind, and the learning rate's schedule begins anew. What the run's settings are at
    that step goes into the file.

    Args:
        run: a coordinator's state folder, or FOLDER@STEP for another checkpoint than the newest.

    Raises:
        UserError: there is no such checkpoint, or a file is there already or cannot be written.
    """
    folder, step = _parsed(run)
    if job_file.exists():
        raise UserError(f"{job_file} is there already: give the job file another name")
    check_writable(job_file)
    found, served = JobOnDisk.of(folder), _served(folder)
    model = job_file.absolute().parent / f"{job_file.stem}-model"
    taken = export(folder, model, step, merge=True).step
    settings = found.timeline.settings_at(taken + 1)
    settings = settings._replace(training=settings.training.model_copy(update={"schedule_end": None}))
    name = found.timeline.job.name[:LONGEST_NAME]
    lines = [
        f"# A new job that begins with the weights of {found.timeline.job.name} after step {taken}.",
        "# Optimizer and schedule begin anew: some warm-up steps help. Edit what is to be different, and serve it on",
        "# another state folder.",
        f"name = {_toml(f'{name}-fork')}",
        "\n[model]",
        f"path = {_toml(model.name)}",
        "\n[data]",
        *_data(served.data, model.name, job_file.absolute().parent),
    ]
    tables = {name: values.model_dump(mode="json") for name, values in settings._asdict().items()}
    lora = tables["training"].pop("lora", None)
    tables |= {"lora": lora, "sharing": served.sharing.model_dump(mode="json", exclude_defaults=True)}
    for table, keys in tables.items():
        if keys:
            lines += [f"\n[{table}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
    write_atomically(job_file, "\n".join(lines) + "\n")
    return taken


def _parsed(run: str) -> tuple[Path, int | None]:
    folder, at, step = run.rpartition("@")
    if not at or Path(run).is_dir():
        return Path(run), None
    if not step.isdecimal():
        raise UserError(f"--from {run}: after @ comes the step of a checkpoint, as run@500")
    return Path(folder), int(step)


def _served(folder: Path) -> Job:
    """Return the job file that was served last.

    Raises:
        UserError: it is not known.
    """
    try:
        return Job.model_validate_json((folder / SERVED).read_bytes())
    except (OSError, ValueError):
        raise UserError(
            f"{folder} does not tell which text its job is trained on, as an older version served it last: serve it "
            "once more, or `dtfm-coordinator export` it and name the folder as path in a new job's [model]"
        ) from None


def _data(data: Data, tokenizer: str, folder: Path) -> Iterator[str]:
    """Yield the lines of `[data]` in a job file in `folder`."""
    if data.text is not None:
        text = data.text if isinstance(data.text, str) else [_near(one, folder) for one in data.text]
        yield f"text = {_toml(text)}"
    yield f"tokenizer = {_toml(tokenizer)}"
    if data.packing:
        yield "packing = true"
    for source in data.sources or ():
        yield "\n[[data.sources]]"
        values = source.model_dump(mode="json", exclude_defaults=True) | {"path": _near(source.path, folder)}
        yield from (f"{key} = {_toml(value)}" for key, value in values.items())


def _near(path: str, folder: Path) -> str:
    """Return a path as a job file in `folder` names it: one below it by the way from there."""
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path


def _toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
