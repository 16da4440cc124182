"""Words for what a swarm trains, for the person who lends it a machine. Pure."""

from dtfm_node.control.contribution_words import in_count
from dtfm_protocol.bounds import printable
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.plan.plan import Plan

MOST_KIND = 32
"""Characters of the kind of model that are said."""


def job_in_words(job: ResolvedJob, plan: Plan | None = None) -> str:
    """Return what `job`, which was found to be one that can be laid out, trains: its name, model, text and length.

    Args:
        plan: the newest plan, which knows how the owner has changed the job since; None: there is none.
    """
    steps = JobTimeline(job, plan.amendments if plan is not None else ()).last_step
    kind = printable(str(job.config.get("model_type", "")))[:MOST_KIND]
    return (
        f'this swarm trains "{printable(job.name)}": a {kind} model of {in_count(model_sizes(job.config).total)} '
        f"parameters, on {in_count(job.corpus.tokens)} tokens of text, for {steps:,} steps"
    )
