"""Needs of a job that every node must meet: worked out in a process of its own, as it takes seconds.

Run as a program, it reads a job from standard input, and writes its `Need` as JSON.
"""

import json
import sys
from dataclasses import asdict, dataclass

from dtfm_node.doctor import separate_process
from dtfm_protocol.data.chapters import MARKED_RECORD
from dtfm_protocol.data.token_shards import SHARD_BYTES, corpus_bytes
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.resolved_job import CHAPTER_SHARDS, ResolvedJob
from dtfm_protocol.process.memory_limit import data_bytes, hold_data_to

NEED_BYTES = 3 << 30
"""Bytes that the process may take, its libraries included."""


@dataclass(frozen=True)
class Need:
    """Bytes that a job needs at least of a node: memory for its smallest stage, and disk for the tokens that it reads
    at a time (`corpus`)."""

    smallest_stage: int = 0
    smallest_apart: int = 0
    """Bytes of the smallest stage on a device that has memory of its own."""
    apart_host: int = 0
    """Bytes of the machine's memory that this one takes, beside the device's."""
    corpus: int = 0
    fault: str = ""
    """Reason why they are not known: the model cannot be built here; "": they are."""


async def need_of(job: ResolvedJob) -> Need:
    """Ask that process for the job's needs, and end it where this is cancelled.

    Raises:
        OSError: it cannot be started, or has ended without an answer.
    """
    return Need(**await separate_process.answer(__name__, job.model_dump_json()))


def work_out(job: ResolvedJob) -> Need:
    """Return the needs of the least demanding stage; the model's skeleton, without weights, is built for it."""
    from dtfm_protocol.model.stage_demand import smallest_stage

    try:
        stage, apart = (smallest_stage(job.config, job.training, apart=one) for one in (False, True))
    except UserError as error:
        return Need(fault=str(error))
    return Need(stage.total, apart.total, apart.host, min(corpus_bytes(job.corpus), tokens_at_once(job)))


def tokens_at_once(job: ResolvedJob) -> int:
    """Return the bytes of tokens that a node must have room for, at most: those of two steps and an evaluation, each
    sequence in two shards of its own, with their chapters."""
    held_out = sum(one.windows for one in job.corpus.held_out) or job.evaluation.sequences
    sequences = 2 * job.training.global_batch + (held_out if job.evaluation.every else 0)
    listed = CHAPTER_SHARDS * MARKED_RECORD.itemsize if job.corpus.chapters else 0
    return 2 * sequences * (SHARD_BYTES + listed)


if __name__ == "__main__":
    if (now := data_bytes()) is not None:
        hold_data_to(now + NEED_BYTES)  # of what others have described, nothing may take more to be laid out
    print(json.dumps(asdict(work_out(ResolvedJob.model_validate_json(sys.stdin.buffer.read())))))
