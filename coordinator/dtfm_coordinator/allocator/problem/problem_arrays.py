"""Problem of placement as plain arrays for the compiled cost: peers, links, model and job."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand
from dtfm_protocol.job.job_file import ScheduleName, Wire
from dtfm_protocol.model.memory_model import COPY_BYTES_PER_PARAMETER, FEEDBACK_BYTES_PER_PARAMETER, reduction_bytes
from dtfm_protocol.model.stage_compute import untrained_prefix
from dtfm_protocol.plan.reductions import BUCKET_BYTES
from dtfm_protocol.view.view import LayerSeconds
from dtfm_protocol.wire.codec_sizes import BYTES_A_VALUE, FED_BACK

Floats = npt.NDArray[np.float64]

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "zero-bubble", "gpipe")
"""Names of the schedules, by their numbers; of those that are as good, the first is taken."""
ONE_F_ONE_B, ZERO_BUBBLE, GPIPE = range(3)


class Problem(NamedTuple):
    """Job on N peers as plain arrays. Seconds, bytes, and bytes a second throughout."""

    forward: Floats
    """Seconds of one layer's forward on one micro-batch, shape (N,)."""
    backward: Floats
    """Seconds of one layer's whole backward on one micro-batch, shape (N,)."""
    weight: Floats
    """Seconds of the part of the backward that the weights' gradients take, shape (N,)."""
    optimizer: Floats
    """Seconds of one layer's optimizer step, once a step, shape (N,)."""
    memory: Floats
    """Bytes of memory, shape (N,); infinite where unknown."""
    host_memory: Floats
    """Bytes of the machine's memory, shape (N,), of a device that has its own; infinite where both are one."""
    alpha: Floats
    """One-way delay in seconds, shape (N, N)."""
    beta: Floats
    """Bandwidth of a pair alone in bytes a second, shape (N, N); 0 is a pair that cannot talk."""
    uplink: Floats
    downlink: Floats
    layers: int
    micro_batches: int
    schedule: int
    """Index of the schedule in `SCHEDULES`."""
    ahead_bytes: float
    """Bytes of one micro-batch's message over one boundary, in the job's wire."""
    back_bytes: float
    """Bytes of the message that brings its gradient back."""
    boundary_bytes: Floats
    """Bytes of both over each boundary that there can be, shape (2, layers): as above, but for boundaries of another
    wire."""
    gradient_before: Floats
    """Bytes of gradients of all layers before each, shape (layers + 1,); of what is not trained there are none."""
    whole_layer_gradients: float
    """Bytes of gradients of a layer that is trained, the mean: those that `optimizer` is for."""
    embedding_gradients: float
    head_gradients: float
    tied_gradients: float
    """Bytes of the head's gradients that are held once where one stage has both ends."""
    bucket_bytes: float
    """Bytes of a full bucket of gradients, as coded for the wire."""
    head_layers: float
    trained_before: Floats
    """Number of layers of which anything is trained before each, shape (layers + 1,)."""
    untrained_prefix: int
    """Number of layers before the first parameter that is trained: the first stage has no backward there."""
    head_weight_layers: float
    """Those of the `head_layers` whose gradients of weights are computed: all or none."""
    layer_parameters: float
    """Number of parameters of the largest layer that are trained."""
    embedding_parameters: float
    """Number of parameters of the embedding that are trained."""
    copied_layer_bytes: float
    """Bytes of the copies in bf16 of the largest layer's parameters."""
    copied_head_bytes: float
    """Bytes of the copies in bf16 of the head's parameters."""
    frozen_layer_bytes: float
    """Bytes of the parameters of the largest layer that are not trained."""
    frozen_embedding_bytes: float
    """Bytes of the parameters of the embedding that are not trained."""
    frozen_head_bytes: float
    """Bytes of the parameters of the head that are not trained."""
    frozen_tied_bytes: float
    """Those of them that are held once where one stage has both ends."""
    head_parameters: float
    """Number of parameters of the head that are trained."""
    tied_parameters: float
    """Those of them that are the embedding's."""
    parameter_bytes: Floats
    """Bytes of all that is kept in `memory` for a parameter while it is trained, shape (N,)."""
    host_parameter_bytes: float
    """Bytes of what a device with memory of its own keeps in `host_memory` for a parameter."""
    moved_layer_bytes: float
    """Bytes that a peer fetches of a layer which it has not served, in the mean."""
    feedback_bytes: float
    """Bytes of further memory of a parameter where a stage has replicas."""
    tied_reduction_bytes: float
    """Bytes of further memory of first and last stage, where those are two."""
    logits_bytes: float
    """Bytes of further memory of the last stage."""
    logits_gradient_bytes: float
    """Bytes of further memory of the last stage for each micro-batch whose weights' gradients wait."""
    activation_bytes: float
    """Bytes kept for each layer and micro-batch in flight."""
    input_bytes: float
    """Bytes kept instead by a stage that recomputes; also those of a message once it is decoded."""
    paced: bool = False
    """Whether orders of compute go by what actions and messages take, with more in flight than free links need."""

    @property
    def message_bytes(self) -> float:
        """Bytes of a message, the mean of both ways."""
        return (self.ahead_bytes + self.back_bytes) / 2


def problem(
    peers: Sequence[str],
    links: Links,
    layer_seconds: Mapping[str, LayerSeconds],
    memory: Mapping[str, float],
    demand: ModelDemand,
    micro_batches: int,
    schedule: ScheduleName,
    wire: Wire,
    paced: bool = False,
    host_memory: Mapping[str, float] | None = None,
) -> Problem:
    """Return the arrays of a job on `peers`, in their order.

    Args:
        host_memory: bytes of the machine's memory of those peers whose devices have their own.
    """
    host = {} if host_memory is None else host_memory
    table = demand.table
    rows = [links.index[peer] for peer in peers]
    seconds = [layer_seconds[peer] for peer in peers]
    width = BYTES_A_VALUE[wire.gradients]
    ahead_bytes, back_bytes = demand.message_bytes(wire)
    alpha, beta = links.pairs(peers, peers)
    trained, frozen_bytes, copied_bytes = _largest_layer(demand)
    return Problem(
        forward=np.array([one.forward for one in seconds]),
        backward=np.array([one.backward for one in seconds]),
        weight=np.array([one.weight_part for one in seconds]),
        optimizer=np.array([one.optimizer or 0.0 for one in seconds]),
        memory=np.array([memory[peer] for peer in peers], dtype=np.float64),
        host_memory=np.array([host.get(peer, np.inf) for peer in peers], dtype=np.float64),
        alpha=np.ascontiguousarray(alpha),
        beta=np.ascontiguousarray(beta),
        uplink=links.uplink[rows],
        downlink=links.downlink[rows],
        layers=demand.layers,
        micro_batches=micro_batches,
        schedule=SCHEDULES.index(schedule),
        ahead_bytes=float(ahead_bytes),
        back_bytes=float(back_bytes),
        boundary_bytes=np.tile([[float(ahead_bytes)], [float(back_bytes)]], demand.layers),
        gradient_before=np.array([0.0, *accumulate(width * count for count in demand.trained_layer_parameters)]),
        whole_layer_gradients=width * demand.measured_parameters,
        embedding_gradients=width * (demand.embedding_parameters - demand.frozen_embedding_parameters),
        head_gradients=width * (demand.head_parameters - demand.frozen_head_parameters),
        tied_gradients=width * demand.trained_tied_parameters,
        bucket_bytes=BUCKET_BYTES / BYTES_A_VALUE["fp32"] * width,
        head_layers=float(demand.head_layers),
        trained_before=np.array([0.0, *accumulate(map(float, demand.is_trained))]),
        untrained_prefix=untrained_prefix(demand.is_trained, embedding=demand.is_embedding_trained),
        head_weight_layers=float(demand.head_layers if demand.is_head_trained else 0.0),
        layer_parameters=float(trained),
        embedding_parameters=float(demand.embedding_parameters - demand.frozen_embedding_parameters),
        copied_layer_bytes=float(copied_bytes),
        copied_head_bytes=float(COPY_BYTES_PER_PARAMETER * demand.copied_head_parameters),
        frozen_layer_bytes=float(frozen_bytes),
        frozen_embedding_bytes=float(demand.frozen_embedding_bytes),
        frozen_head_bytes=float(demand.frozen_head_bytes),
        frozen_tied_bytes=float(demand.frozen_tied_bytes),
        head_parameters=float(demand.head_parameters - demand.frozen_head_parameters),
        tied_parameters=float(demand.trained_tied_parameters),
        parameter_bytes=np.array(
            [table.parameter_bytes - (table.host_bytes if peer in host else 0.0) for peer in peers], dtype=np.float64
        ),
        host_parameter_bytes=float(table.host_bytes),
        moved_layer_bytes=demand.moved_layer_bytes,
        feedback_bytes=float(FEEDBACK_BYTES_PER_PARAMETER if wire.gradients in FED_BACK else 0),
        tied_reduction_bytes=float(reduction_bytes(demand.trained_tied_parameters)),
        logits_bytes=float(demand.head_bytes),
        logits_gradient_bytes=float(demand.logits_gradient_bytes),
        activation_bytes=float(demand.layer_activation_bytes),
        input_bytes=float(demand.input_bytes),
        paced=paced,
    )


def _largest_layer(demand: ModelDemand) -> tuple[int, int, int]:
    """Return the number of parameters that are trained, the bytes of those that are not, and those of copies, of the
    layer that takes most memory."""
    trained, frozen = demand.trained_layer_parameters, demand.frozen_layer_bytes or (0,) * demand.layers
    copies = tuple(COPY_BYTES_PER_PARAMETER * count for count in demand.copied_layer_parameters)
    each = demand.table.parameter_bytes
    return max(zip(trained, frozen, copies, strict=True), key=lambda layer: each * layer[0] + layer[1] + layer[2])
