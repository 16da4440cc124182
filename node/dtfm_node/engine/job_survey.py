"""Survey of a job: what its model would take, worked out in a process of bounded memory and time, before this node
builds anything of what others have described."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from pydantic import ValidationError

from dtfm_protocol.bounds import Count, Text
from dtfm_protocol.checkpoint.transfers import SHARD_LIMIT
from dtfm_protocol.data.sample_shards import target_bytes
from dtfm_protocol.data.token_shards import shard_bytes
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_limits import check_limits
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.frozen_parameters import check_frozen
from dtfm_protocol.model.single_layer import layer_bytes
from dtfm_protocol.model.stage_demand import smallest_stage_bytes
from dtfm_protocol.process.confined_process import ConfinedProcess
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.schema import Schema

SURVEY_BYTES = 2 << 30
"""Bytes that laying out a model's skeleton may take: its matrices take none, its tables and Python's objects a part of
this."""


@dataclass(frozen=True)
class JobSurvey:
    """Bytes of memory that a job asks for at the least."""

    smallest_stage: int
    """To train the least demanding stage."""
    measuring: int
    """To measure a decoder layer."""
    smallest_apart: int = 0
    """What training the least demanding stage takes of a GPU's own memory."""


class _Answer(Schema):
    """The answer of a confined process, which may be in the hands of whoever made the job."""

    fault: Text = ""
    """Reason why the job cannot run here; "": there is none."""
    smallest_stage: Count = 0
    measuring: Count = 0
    smallest_apart: Count = 0


Surveyor = Callable[[ResolvedJob], Awaitable[JobSurvey]]
"""Function that surveys a job; it raises a UserError that says why the job cannot run here."""


def check_counts(job: ResolvedJob) -> None:
    """Check what can be checked of a job without building anything.

    Raises:
        UserError: it is larger than any job.
    """
    check_limits(job.training, job.evaluation, len(job.corpus.held_out))
    sizes = [shard_bytes(job.corpus, shard) for shard in job.corpus.shards]  # those of chapters, when they are fetched
    samples = job.corpus.samples
    largest = max([0, *sizes, *([target_bytes(samples)] if samples is not None else [])])
    if largest > SHARD_LIMIT:
        raise UserError(f"a token shard of {largest} bytes: the largest has {SHARD_LIMIT}")


def survey(job: ResolvedJob) -> JobSurvey:
    """Return what the job asks for, by laying its model out without its matrices.

    Raises:
        UserError: the architecture cannot be built or cut.
    """
    check_frozen(job.config, job.training)
    config, training = job.config, job.training
    smallest = (smallest_stage_bytes(config, training, apart=apart) for apart in (False, True))
    return JobSurvey(next(smallest), layer_bytes(config, training), next(smallest))


def answer(data: bytes) -> bytes:
    """Survey the job that is `data`, as JSON; the work of a confined process.

    Raises:
        MemoryError: it takes more memory than that process may have.
    """
    import torch

    torch.set_num_threads(1)  # threads of the process that was copied are not here
    try:
        return json.dumps(asdict(survey(ResolvedJob.model_validate_json(data)))).encode()
    except UserError as error:
        fault = str(error)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the library makes of a hostile config
        fault = f"{type(error).__name__}: {error}"
    if "alloc" in fault.lower():  # libraries wrap it in errors of their own
        raise MemoryError
    return json.dumps({"fault": " ".join(fault.split())[:300]}).encode()


async def confined_survey(process: ConfinedProcess, job: ResolvedJob) -> JobSurvey:
    """Survey a job in another process.

    Raises:
        UserError: the job cannot run here.
    """
    check_counts(job)
    try:
        said = await process.run(job.model_dump_json().encode(), memory=SURVEY_BYTES, seconds=TIMEOUTS.job_survey)
        found = _Answer.model_validate_json(said)
    except ValidationError:
        raise UserError("the process that lays out the job's model gives no answer; nothing of it was built") from None
    except UserError as error:
        raise UserError(f"the job's model cannot be laid out here: {error}; nothing of it was built") from None
    if found.fault:
        raise UserError(found.fault)
    return JobSurvey(found.smallest_stage, found.measuring, found.smallest_apart)


async def local_survey(job: ResolvedJob) -> JobSurvey:
    """Survey a job in this process, without bounds: where there can be no confined one.

    Raises:
        UserError: the job cannot run here.
    """
    check_counts(job)
    return survey(job)
