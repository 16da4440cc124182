"""Findings about a job file: its model, text, stages and traffic, and all its mistakes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dtfm_coordinator.allocator.foundations.shapes import check_choices, fewest_nodes
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_coordinator.allocator.problem.stage_needs import StageNeeds, depths, smallest_stage_bytes_of, stage_needs
from dtfm_protocol.data.batches import check_enough, tail_tokens
from dtfm_protocol.data.set_sizes import SetSize
from dtfm_protocol.data.text_size import TextSize
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.job_limits import check_limits

MANY_EPOCHS = 4.0
"""Epochs beyond which the same text teaches markedly less (Muennighoff et al. 2023, arXiv 2305.16264)."""

T = TypeVar("T")


@dataclass(frozen=True)
class Boundary:
    """Bytes that one step sends over one boundary between stages, by the job's wire codecs."""

    ahead_bytes: int
    """Bytes of activations, of all micro-batches."""
    back_bytes: int
    """Bytes of their gradients."""

    @property
    def bytes(self) -> int:
        """Bytes of both ways."""
        return self.ahead_bytes + self.back_bytes


@dataclass(frozen=True)
class ModelFindings:
    """Findings about a job's model, and what it asks of peers."""

    architecture: str
    parameters: int
    """Number of parameters, adapters included."""
    trained: int
    """Number of those that are trained."""
    layers: int
    smallest_stage_bytes: int
    """Bytes of memory of the least demanding stage that there can be."""
    by_depth: tuple[StageNeeds, ...]
    boundary: Boundary
    coarse_boundary: Boundary | None
    """The same by the job's slow_wire; None: it has none."""
    tied_gradient_bytes: float
    """Bytes of gradients that first and last stage reduce with each other, where they share the embedding; else 0."""
    fewest_nodes: int


@dataclass(frozen=True)
class TextFindings:
    """Findings about a job's text."""

    size: TextSize
    step_tokens: int
    """Target tokens of a step."""
    trained_tokens: int
    """Target tokens of all steps."""
    held_out_tokens: int
    """Tokens at the end of the text that are kept for evaluation."""
    epochs: float
    """How often the job reads each token that is not held out; 0 where the text is too short."""


@dataclass(frozen=True)
class JobFindings:
    """Findings about a job file. What a mistake stands in the way of is None."""

    job: Job
    model: ModelFindings | None
    demand: ModelDemand | None
    text: TextFindings | None
    sets: tuple[SetSize, ...] | None
    """Sizes of the sets on which the job is evaluated."""
    mistakes: tuple[str, ...]
    """What stops the job, each in one line; none: it can be served."""
    notes: tuple[str, ...]
    """What an owner may not have meant, each in one line; none where there are mistakes to mend first."""


def job_findings(
    job: Job,
    settle: Callable[[Job], tuple[str, ModelDemand]],
    measure: Callable[[Job], TextSize],
    known: tuple[str, ...] = (),
    weigh: Callable[[Job], tuple[SetSize, ...]] = lambda job: (),
) -> JobFindings:
    """Return the findings about a job.

    Args:
        known: mistakes that were taken out of it before.
        settle: checks and sizes the model; returns its architecture and demand. It may raise a UserError.
        measure: measures the text. It may raise a UserError.
        weigh: measures the sets for evaluation. It may raise a UserError.
    """
    mistakes = list(known)

    def attempt(work: Callable[[], T]) -> T | None:
        try:
            return work()
        except UserError as error:
            line = " ".join(str(error).split())
            if line not in mistakes:
                mistakes.append(line)
            return None

    attempt(lambda: check_limits(job.training, job.evaluation, len(job.evaluation.sets)))
    attempt(lambda: check_choices(job.plan, job.training.micro_batches))
    is_countable = len(mistakes) == len(known)  # else there may be more micro-batches than can be laid out
    settled, size = attempt(lambda: settle(job)), attempt(lambda: measure(job))
    sets = attempt(lambda: weigh(job))
    model = demand = None
    if settled is None and job.model.architecture is not None and job.data.tokenizer != "bytes":
        # A mistake of the tokenizer hides those of the model, and whether it has as many layers as stages are wanted.
        by_bytes = job.data.model_copy(update={"tokenizer": "bytes"})
        laid_out = attempt(lambda: settle(job.model_copy(update={"data": by_bytes})))
        if laid_out is not None:
            attempt(lambda: check_choices(job.plan, job.training.micro_batches, laid_out[1].layers))
    if settled is not None:
        architecture, demand = settled
        attempt(lambda: check_choices(job.plan, job.training.micro_batches, demand.layers))
        if is_countable:
            model = model_findings(job, architecture, demand)
    text = text_findings(job, size) if size is not None else None
    if text is not None:
        attempt(lambda: check_enough(text.size.tokens, job.training, job.evaluation))
    return JobFindings(job, model, demand, text, sets, tuple(mistakes), () if mistakes else notes(job, text))


def model_findings(job: Job, architecture: str, demand: ModelDemand) -> ModelFindings:
    """Return what a model of this demand asks of the peers of a job."""
    count, planning = job.training.micro_batches, job.plan
    ahead, back = demand.message_bytes(planning.wire)
    slow_ahead, slow_back = demand.message_bytes(planning.coarse_wire)
    return ModelFindings(
        architecture,
        demand.parameters(0, demand.layers),
        demand.trained(0, demand.layers),
        demand.layers,
        smallest_stage_bytes_of(demand),
        tuple(stage_needs(demand, count, planning, depth) for depth in depths(demand.layers, planning)),
        Boundary(count * ahead, count * back),
        None if planning.slow_wire == "none" else Boundary(count * slow_ahead, count * slow_back),
        demand.tied_gradient_bytes(planning.wire),
        fewest_nodes(planning),
    )


def text_findings(job: Job, size: TextSize) -> TextFindings:
    """Return what a job makes of a text of this size."""
    training = job.training
    tail = tail_tokens(training, job.evaluation)
    windows = max(0, size.tokens - tail - 1) // training.sequence_length
    trained = training.steps * training.tokens
    epochs = training.steps * training.global_batch / windows if windows else 0.0
    return TextFindings(size, training.tokens, trained, tail, epochs)


def _dropout(job: Job) -> str:
    from dtfm_protocol.model.model_config import dropout_in_words

    return dropout_in_words(job.model)


def times(epochs: float) -> str:
    """Return a number of epochs, with three figures where there are few."""
    return f"{epochs:,.0f}" if epochs >= 100 else f"{epochs:.3g}"


def notes(job: Job, text: TextFindings | None) -> tuple[str, ...]:
    """Return what can be trained, and may not be meant, each in one line."""
    training, planning = job.training, job.plan
    found = []
    replicas = 1 if planning.replicas == "auto" else planning.replicas
    if planning.stages != "auto" and training.micro_batches // replicas < planning.stages:
        share = max(1, training.micro_batches // replicas)
        idle = (planning.stages - 1) / (share + planning.stages - 1)
        found.append(
            f"{share} micro-batches cannot fill a pipeline of {planning.stages} stages: each peer idles at least "
            f"{100 * idle:.0f} % of a step; lower micro_batch, or raise global_batch"
        )
    if text is not None and text.epochs > MANY_EPOCHS:
        found.append(
            f"each token is read {times(text.epochs)} times: after about {MANY_EPOCHS:.0f} the same text teaches less; "
            "more text, or fewer steps"
        )
    if text is not None and text.size.smaller_bpe:
        found.append(
            f"a sample of the text yields {text.size.smaller_bpe:,} kinds of token, fewer than "
            f'"{job.data.tokenizer}": where all of it yields no more, `serve` says so once it has read it all; fewer '
            "are safe"
        )
    if job.checkpoint.every == 0:
        found.append("checkpoint.every = 0: until the last step the state is on the nodes alone")
    made_here = job.data.tokenizer_folder is None
    source = job.model.folder
    if made_here and source is not None and any(source.glob("*.safetensors")):
        found.append(
            f"the weights in model.path have learned another tokenizer than {job.data.tokenizer!r}: without "
            "data.tokenizer theirs is taken"
        )
    if source is not None and (dropout := _dropout(job)):
        found.append(dropout)
    return tuple(found)
