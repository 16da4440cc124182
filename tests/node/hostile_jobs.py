"""Program that is given hostile jobs, as a node is: says for each what came of it, and the most memory that it took.

One line of JSON a job, read from standard input and written to standard output.
"""

import asyncio
import contextlib
import json
import resource
import sys

import torch

from dtfm_node.engine.device_profile import availability, measure_profile
from dtfm_node.engine.job_survey import Surveyor
from dtfm_node.engine.process_limits import hold_memory, surveyor
from dtfm_node.engine.runtime import Runtime
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.resolved_job import ResolvedJob

OFFERED_GB = 0.25


async def met(job: ResolvedJob, survey: Surveyor) -> dict[str, object]:
    """Do with a job what a node does before it offers itself."""
    with Runtime.running(torch.device("cpu")) as machine:
        try:
            found = await survey(job)
            profile = await measure_profile(job, found, machine, OFFERED_GB, "session")
        except UserError as error:
            return {"refused": str(error)}
        return {"offers": profile.memory_bytes, "says": availability(found, profile)}


def main() -> None:
    """Meet each job with a process of its own for the survey, all copied before there are threads."""
    jobs = [ResolvedJob.model_validate_json(line) for line in sys.stdin]
    with contextlib.ExitStack() as stack:
        surveys = [surveyor(stack) for _ in jobs]
        hold_memory("cpu", OFFERED_GB)
        torch.set_num_threads(1)
        for job, survey in zip(jobs, surveys, strict=True):
            outcome = asyncio.run(met(job, survey))
            own, copies = (
                resource.getrusage(who).ru_maxrss << 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            )
            print(json.dumps(outcome | {"own": own, "copies": copies}), flush=True)


if __name__ == "__main__":
    main()
