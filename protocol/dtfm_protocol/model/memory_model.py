"""The memory of whoever trains a stage. Apart from `model_sizes`, so that planning alone need not load torch.

`stage_bytes` is the rule. The allocator's search asks the other way round, how many layers fit, of the parts of it:
they call nothing and work on numbers alone, so that it can compile these very functions.
"""

from dtfm_protocol.checkpoint.state_slots import WEIGHT, StateTable
from dtfm_protocol.job.job_file import CodecName, Precision, Training
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import BUCKET_BYTES, BUCKETS_UNDER_WAY, reductions
from dtfm_protocol.wire.codec_sizes import FED_BACK

FEEDBACK_BYTES_PER_PARAMETER = 4
"""Bytes of what int8 left out of a parameter's gradient in the last all-reduce, in fp32."""
COPY_BYTES_PER_PARAMETER = 2
"""Bytes of what products in bf16 take of a parameter that is kept in fp32: a copy of it, made once a step."""
BOUNDARY_BYTES_PER_VALUE = 4
"""Bytes of a value of the activations between two layers, or of their gradients: the residual stream is fp32 in either
precision."""
GRADIENT_BYTES_PER_PARAMETER = 4
"""Bytes of a parameter's gradient as it is summed: in fp32, however it is coded on the way."""
COPIES_OF_A_BUCKET = 2
"""Copies of each bucket under way that a reduction takes beside the gradients: of what goes, and of what comes."""
MOST_REDUCTION_BYTES = COPIES_OF_A_BUCKET * BUCKETS_UNDER_WAY * BUCKET_BYTES
"""Bytes that a reduction takes at most."""
MESSAGES_RECEIVED_AHEAD = 2
"""Boundary messages for which a peer of more than one stage has room beside those in flight."""


def makes_copies(precision: Precision, table: StateTable) -> bool:
    """Whether products take copies of parameters, which are kept by `table`, in a narrower type."""
    return precision == "bf16" and table.of_key(WEIGHT).dtype == "F32"


def has_fp32_base(training: Training) -> bool:
    """Whether what a job leaves as it begins is kept in fp32: else products take it as it is kept, without a copy."""
    return training.method != "lora" or training.lora.base == "fp32"


def layer_kept_bytes(
    in_flight: float, waiting: float, activation_bytes: float, boundary_bytes: float, recompute: bool
) -> float:
    """Return the bytes that a peer keeps of each of its layers, beside parameters; arguments as for `stage_bytes`."""
    if recompute:
        return in_flight * boundary_bytes + waiting * activation_bytes
    return in_flight * activation_bytes


def messages_bytes(boundary_bytes: float, stages: int) -> float:
    """Return the bytes of messages for which a peer has room beside those in flight; a single stage receives none."""
    return MESSAGES_RECEIVED_AHEAD * boundary_bytes if stages > 1 else 0 * boundary_bytes


def reduction_bytes(parameters: float) -> float:
    """Return the bytes that a reduction of the gradients of so many parameters takes beside them; along trees it has
    as many bytes under way, of more and smaller buckets."""
    return min(COPIES_OF_A_BUCKET * GRADIENT_BYTES_PER_PARAMETER * parameters, 1.0 * MOST_REDUCTION_BYTES)


def gathered_beside(plan: Plan, peer: str, trained: int, tied: int) -> int:
    """Return the bytes that a peer takes, beside `reduction_bytes`, as it has more than a bucket of others' sums of
    gradients at once: it sums a large part, or much comes to it along trees (`Reduction.gathers`).

    Args:
        trained: parameters of its stage that are trained.
        tied: those of them that first and last stage share; 0: there are none in the job.
    """
    if plan.parts is None and plan.trees is None:
        return 0
    more = 0.0
    for one in reductions(plan, tied=tied > 0):
        if peer in one.holders:
            under_way = GRADIENT_BYTES_PER_PARAMETER * (tied if one.is_shared else trained)
            gathers = one.gathers(one.holders.index(peer))
            more += max(0.0, gathers - 1.0) * min(under_way, BUCKETS_UNDER_WAY * BUCKET_BYTES)
    return int(more)


def stage_bytes(
    parameters: int,
    layers: int,
    stages: int,
    in_flight: int,
    *,
    parameter_bytes: float,
    activation_bytes: int,
    boundary_bytes: int,
    waiting: int = 0,
    recompute: bool = False,
    reduced: CodecName | None = None,
    shared: int = 0,
    head_bytes: int = 0,
    frozen: int = 0,
    frozen_bytes: int = 0,
    copied: int = 0,
) -> int:
    """Return the bytes that a peer needs to train a stage of `parameters` and `layers`, one of `stages` (2 stands for
    more).

    Args:
        in_flight: the most micro-batches of which it keeps anything at once.
        parameter_bytes: bytes of all that is kept for a parameter (`StateTable.parameter_bytes`).
        activation_bytes: bytes kept from a micro-batch's forward to its backward, for each layer.
        boundary_bytes: bytes of one micro-batch between two layers, and so of a message once it is decoded.
        waiting: the most of them whose backward has begun, and whose weights' gradients wait for their own action; what
            these need is no more than a layer's activations, and a stage that recomputes has it then.
        recompute: whether it keeps its layers' inputs alone, and one layer's activations while it computes anew.
        reduced: codec in which the stage's peers reduce its gradients, those of `FED_BACK` with an error that each
            keeps; None: it has one peer.
        shared: how many of its trained parameters another stage holds, too, so that both reduce their gradients.
        head_bytes: bytes that the head takes beside its parameters, on the last stage.
        frozen: how many of the parameters are not trained.
        frozen_bytes: bytes of those, in the form in which they are kept, and nothing beside them.
        copied: of how many of the parameters products take a copy in bf16 (`makes_copies`).
    """
    trained = parameters - frozen
    parameter = parameter_bytes + (FEEDBACK_BYTES_PER_PARAMETER if reduced in FED_BACK else 0)
    held = int(parameter * trained) + frozen_bytes + head_bytes
    held += int((reduction_bytes(trained) if reduced else 0.0) + reduction_bytes(shared))
    held += COPY_BYTES_PER_PARAMETER * copied
    held += int(layers * layer_kept_bytes(in_flight, waiting, activation_bytes, boundary_bytes, recompute))
    held += int(messages_bytes(boundary_bytes, stages))
    return held + activation_bytes if recompute else held
