"""What a placement is judged by, as plain arrays for the compiled cost: peers, links, model and job."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.step.demand import ModelDemand
from dtfm_coordinator.allocator.step.links import Links
from dtfm_protocol.job import ScheduleName, Wire
from dtfm_protocol.model.memory import BYTES_PER_PARAMETER
from dtfm_protocol.view import LayerSeconds

Floats = npt.NDArray[np.float64]


class Problem(NamedTuple):
    """One job on N peers. Seconds, bytes, and bytes a second throughout."""

    forward: Floats
    """Of one layer on one micro-batch, shape (N,)."""
    backward: Floats
    optimizer: Floats
    """Of one layer's parameters, once a step, shape (N,)."""
    memory: Floats
    """Shape (N,); infinite where unknown."""
    alpha: Floats
    """One-way delay, shape (N, N)."""
    beta: Floats
    """Bandwidth of a pair alone, shape (N, N); 0 is a pair that cannot talk."""
    uplink: Floats
    downlink: Floats
    layers: int
    micro_batches: int
    gpipe: bool
    message_bytes: float
    gradient_before: Floats
    """Gradient bytes of the layers before each, shape (layers + 1,)."""
    embedding_gradients: float
    head_gradients: float
    tied_gradients: float
    """Of the head, held once where one stage has both ends."""
    head_layers: float
    layer_bytes: float
    """Of the largest layer's parameters with gradients and moments."""
    embedding_bytes: float
    head_bytes: float
    tied_bytes: float
    activation_bytes: float
    """Kept a layer and a micro-batch in flight."""


def problem(
    peers: Sequence[str],
    links: Links,
    layer_seconds: Mapping[str, LayerSeconds],
    memory: Mapping[str, float],
    demand: ModelDemand,
    micro_batches: int,
    schedule: ScheduleName,
    wire: Wire,
) -> Problem:
    """The arrays of a job on `peers`, in their order."""
    rows = [links.index[peer] for peer in peers]
    seconds = [layer_seconds[peer] for peer in peers]
    width = demand.gradient_bytes(0, demand.layers, wire) / max(1, demand.parameters(0, demand.layers))
    alpha, beta = links.pairs(peers, peers)
    return Problem(
        forward=np.array([one.forward for one in seconds]),
        backward=np.array([one.backward for one in seconds]),
        optimizer=np.array([one.optimizer or 0.0 for one in seconds]),
        memory=np.array([memory[peer] for peer in peers], dtype=np.float64),
        alpha=np.ascontiguousarray(alpha),
        beta=np.ascontiguousarray(beta),
        uplink=links.uplink[rows],
        downlink=links.downlink[rows],
        layers=demand.layers,
        micro_batches=micro_batches,
        gpipe=schedule == "gpipe",
        message_bytes=float(demand.message_bytes(wire)),
        gradient_before=np.array([0.0, *accumulate(width * count for count in demand.layer_parameters)]),
        embedding_gradients=width * demand.embedding_parameters,
        head_gradients=width * demand.head_parameters,
        tied_gradients=width * demand.tied_parameters,
        head_layers=float(demand.head_layers),
        layer_bytes=float(BYTES_PER_PARAMETER * max(demand.layer_parameters)),
        embedding_bytes=float(BYTES_PER_PARAMETER * demand.embedding_parameters),
        head_bytes=float(BYTES_PER_PARAMETER * demand.head_parameters + demand.head_bytes),
        tied_bytes=float(BYTES_PER_PARAMETER * demand.tied_parameters),
        activation_bytes=float(demand.layer_activation_bytes),
    )
