"""Check of a job before its service starts: whatever can be known before any text is tokenized is said before."""

from pathlib import Path

from dtfm_coordinator.allocator.foundations.shapes import check_choices, check_forced, fewest_nodes
from dtfm_protocol.data.prepare import is_prepared, settled_config
from dtfm_protocol.data.text_check import check_encoding, check_text_bytes
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.job_limits import check_limits
from dtfm_protocol.plan.plan import Plan


def check_start(job: Job, folder: Path, plan: Path | None = None, nodes: int | None = None) -> None:
    """Check that a job can be served. A folder that was prepared for it already has the model checked.

    Args:
        folder: state folder of the coordinator.
        plan: file of the layout that the owner forces; None: the allocator decides.
        nodes: number of nodes there will be; None: whoever joins.

    Raises:
        UserError: the job, its text's encoding or the forced plan is wrong, or needs more nodes than there will be.
    """
    check_limits(job.training, job.evaluation, len(job.evaluation.sets))
    forced = Plan.load(plan) if plan is not None else None
    if forced is None:
        check_choices(job.plan, job.training.micro_batches)
    needed = fewest_nodes(job.plan) if forced is None else len(forced.peers)
    if nodes is not None and nodes < needed:
        which = "the job's [plan]" if forced is None else "--plan"
        raise UserError(f"--nodes {nodes}: {which} needs {needed} nodes: give --nodes {needed}, or ask for fewer there")
    if is_prepared(job, folder):
        return
    check_text_bytes(job)
    layers = layer_count(job)
    if forced is None:
        check_choices(job.plan, job.training.micro_batches, layers)
    else:
        check_forced(forced, job.training.micro_batches, layers)
    check_encoding(job)


def layer_count(job: Job) -> int:
    """Return the number of the model's decoder layers, after all checks of the job that need no text.

    Raises:
        UserError: the tokenizer or the model cannot be used.
    """
    from dtfm_protocol.model.model_config import build_config

    return int(build_config(settled_config(job)).num_hidden_layers)
