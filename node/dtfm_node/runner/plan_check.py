"""Check of a plan against what this node has offered, before memory is taken for it. Pure but for the model's sizes."""

import contextlib

from dtfm_protocol.data.batches import check_corpus
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage_demand import peer_demand, smallest_stage_bytes
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.quantities import bytes_in_words

TOLERANCE = 1.1
"""How many times the offer a plan may ask for: another version of torch may count activations a little differently."""


def prepare(job: ResolvedJob) -> None:
    """Work out ahead what the check of any plan of `job` needs: the first time that takes some tenths of a second, for
    which all peers of the plan would wait."""
    with contextlib.suppress(UserError):  # then each plan is refused, and that says why
        smallest_stage_bytes(job.config, job.training)


def why_refused(job: ResolvedJob, plan: Plan, me: str, offered: float, host: float | None = None) -> str | None:
    """Return why this node does not work under `plan`, in one line; None where it does.

    Args:
        offered: bytes of memory that this node offers.
        host: bytes of the machine's memory, where those are a GPU's own; None: they are one.
    """
    if plan.stage_of(me) is None:
        return None
    try:
        timeline = JobTimeline(job, plan.amendments)
        sizes, training = model_sizes(job.config), timeline.settings_at(plan.resume.mark.step + 1).training
        if plan.layers != sizes.layers or len(plan.routes) != training.micro_batches:
            return (
                f"plan {plan.version} is of {plan.layers} layers and {len(plan.routes)} micro-batches, the job of "
                f"{sizes.layers} and {training.micro_batches}: not begun"
            )
        check_corpus(job.corpus, training, job.evaluation)
        demand = peer_demand(job.config, training, plan, me, apart=host is not None)
    except UserError as error:
        return f"plan {plan.version}: {error}"
    asked, had, of = float(demand.total), offered, "memory"
    if asked <= TOLERANCE * had:
        asked, had, of = float(demand.host), 0.0 if host is None else host, "the machine's memory, beside the GPU's,"
        if asked <= TOLERANCE * had:
            return None
    return (
        f"plan {plan.version} asks for {bytes_in_words(asked)} of {of} and this node offers "
        f"{bytes_in_words(had)}: not begun; plan with less for it, or have it offer more with --memory"
    )


def spare_memory(job: ResolvedJob, plan: Plan, me: str, offered: float, host: float | None = None) -> float:
    """Return the bytes of the machine's memory that this node offers and `plan` does not ask for; arguments are those
    of `why_refused`."""
    had = offered if host is None else host
    if plan.stage_of(me) is None:
        return had
    training = JobTimeline(job, plan.amendments).settings_at(plan.resume.mark.step + 1).training
    demand = peer_demand(job.config, training, plan, me, apart=host is not None)
    return had - float(demand.total if host is None else demand.host)
