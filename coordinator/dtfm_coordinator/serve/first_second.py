"""First second of a service: its page is open, and says what is done, before the rest is imported and prepared.

What takes long runs apart, so that the page answers meanwhile, and Ctrl+C ends the program at once.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dtfm_coordinator.serve.beginning import Beginning
from dtfm_coordinator.serve.endpoints import Endpoints
from dtfm_coordinator.serve.serve_options import ServeOptions
from dtfm_coordinator.serve.start_check import check_start
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.process.work_apart import run_apart

if TYPE_CHECKING:
    from dtfm_coordinator.serve.service import Coordinator


async def serve_job(job: Job, folder: Path, options: ServeOptions, ready: Callable[[str], None]) -> None:
    """Serve a job, and the owner's page if that is asked for, until the job is done or until cancelled.

    Args:
        job: what is trained.
        folder: the state folder.
        options: the owner's.
        ready: called with the invite once nodes can join.

    Raises:
        UserError: bad job, port taken, broker out of reach, or a run that cannot go on.
    """
    Endpoints.check(options)  # that a port is taken is said before anything that takes long
    beginning = Beginning(job.name, job.training.steps, folder)
    async with contextlib.AsyncExitStack() as stack:
        if options.web is not None:
            from dtfm_coordinator.serve.web.page_server import page_served  # a second of imports that only a page needs

            await stack.enter_async_context(page_served(options.web, beginning.feed, folder))
        await stack.enter_async_context(beginning.shown())
        beginning.say("Looking at the job and its text.")
        await run_apart(partial(check_start, job, folder, options.plan))
        Endpoints.choose(folder, options)
        beginning.say("Loading what the coordinator needs.")
        coordinator = await run_apart(partial(_made, job, folder, options))
        await coordinator.run(ready, beginning)


def _made(job: Job, folder: Path, options: ServeOptions) -> "Coordinator":
    from dtfm_coordinator.serve.service import Coordinator  # seconds of imports

    return Coordinator(job, folder, options)
