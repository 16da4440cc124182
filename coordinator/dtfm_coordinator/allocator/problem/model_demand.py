"""Demand of a model on the peers that serve its stages: parameters, memory, messages, gradients."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from dtfm_protocol.checkpoint.state_slots import ADAMW, StateTable
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import CodecName, Precision, Wire
from dtfm_protocol.model.memory_model import BOUNDARY_BYTES_PER_VALUE, gathered_beside, makes_copies, stage_bytes
from dtfm_protocol.model.stage_compute import stage_compute
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import Reduction
from dtfm_protocol.plan.schedule import most_in_flight, most_waiting, orders
from dtfm_protocol.view.view import LayerSeconds, NodeView
from dtfm_protocol.wire.codec_sizes import BYTES_A_VALUE, payload_bytes


class ActionSeconds(NamedTuple):
    """Seconds that each kind of a schedule's actions takes on a peer, for one micro-batch through its stage."""

    forward: float
    backward: float
    """Seconds of the backward, without `weight`."""
    weight: float = 0.0
    """Seconds of the weights' gradients, where the schedule makes them an action of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """Sizes of a decoder-only model and of one micro-batch of its job."""

    layer_parameters: tuple[int, ...]
    """Number of parameters of each decoder layer, its adapters included."""
    embedding_parameters: int
    """Number of parameters that the first stage holds beside its layers."""
    head_parameters: int
    """Number of parameters that the last stage holds beside its layers: final norm and output matrix, a tied one
    included."""
    tied_parameters: int = 0
    """Number of the embedding's parameters that the head shares: a single stage holds them once."""
    frozen_layer_parameters: tuple[int, ...] = ()
    """Number of parameters of each decoder layer that are not trained; (): all are."""
    frozen_embedding_parameters: int = 0
    """Number of the embedding's parameters that are not trained."""
    frozen_head_parameters: int = 0
    """Number of the head's parameters that are not trained; a tied matrix is trained, or not, with all of the head."""
    frozen_layer_bytes: tuple[int, ...] = ()
    """Bytes of those of each decoder layer that are not trained, as they are kept; (): there are none."""
    frozen_embedding_bytes: int = 0
    """Bytes of the embedding's parameters that are not trained."""
    frozen_head_bytes: int = 0
    """Bytes of the head's parameters that are not trained."""
    frozen_tied_bytes: int = 0
    """Bytes of the tied ones of them."""
    has_fp32_base: bool = True
    """Whether what is not trained is kept in fp32, so that products in bf16 take a copy of it."""
    message_values: int
    """Number of values in one boundary message: sequences of a micro-batch x sequence length x hidden size."""
    layer_activation_bytes: int
    """Bytes kept from a micro-batch's forward to its backward, for each layer."""
    head_bytes: int = 0
    """Bytes of further memory of the last stage: logits of one micro-batch and what their backward takes."""
    logits_gradient_bytes: int = 0
    """Bytes that the last stage keeps of a micro-batch beside that, until the gradient of the head's matrix is
    computed."""
    head_layers: float = 0.0
    """Compute of the head and the loss, as a multiple of a decoder layer's."""
    table: StateTable = ADAMW
    """What is kept for each parameter."""
    precision: Precision = "fp32"
    """Precision of the job's arithmetic, whose FLOP/s count of peers that publish only those."""
    layer_flops: float | None = None
    """FLOP of one layer's forward on one micro-batch, for peers that publish only their FLOP/s; None: not known."""

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layer_parameters)

    def parameters(self, first: int, end: int) -> int:
        """Return the number of parameters of the stage that holds layers `[first, end)`, with the embedding or head
        beside them."""
        count = sum(self.layer_parameters[first:end])
        if first == 0:
            count += self.embedding_parameters
        if end == self.layers:
            count += self.head_parameters
            if first == 0:
                count -= self.tied_parameters
        return count

    def frozen(self, first: int, end: int) -> int:
        """Return the number of those `parameters` that are not trained."""
        count = sum(self.frozen_layer_parameters[first:end])
        if first == 0:
            count += self.frozen_embedding_parameters
        if end == self.layers:
            count += self.frozen_head_parameters
            if first == 0:
                count -= self.tied_parameters - self.trained_tied_parameters
        return count

    def frozen_bytes(self, first: int, end: int) -> int:
        """Return the bytes of those that are not trained."""
        held = sum(self.frozen_layer_bytes[first:end])
        if first == 0:
            held += self.frozen_embedding_bytes
        if end == self.layers:
            held += self.frozen_head_bytes - (self.frozen_tied_bytes if first == 0 else 0)
        return held

    @property
    def copied_layer_parameters(self) -> tuple[int, ...]:
        """Number of parameters of each decoder layer of which products take a copy in bf16."""
        if not makes_copies(self.precision, self.table):
            return (0,) * self.layers
        return self.layer_parameters if self.has_fp32_base else self.trained_layer_parameters

    @property
    def copied_head_parameters(self) -> int:
        """Number of the head's parameters of which products take a copy in bf16."""
        if not makes_copies(self.precision, self.table):
            return 0
        return self.head_parameters - (0 if self.has_fp32_base else self.frozen_head_parameters)

    @property
    def trained_tied_parameters(self) -> int:
        """Number of the `tied_parameters` if they are trained, else 0."""
        return 0 if self.frozen_head_parameters else self.tied_parameters

    def trained(self, first: int, end: int) -> int:
        """Return the number of those `parameters` that are trained."""
        return self.parameters(first, end) - self.frozen(first, end)

    @property
    def trained_layer_parameters(self) -> tuple[int, ...]:
        """Number of parameters of each decoder layer that are trained."""
        frozen = self.frozen_layer_parameters or (0,) * self.layers
        return tuple(whole - kept for whole, kept in zip(self.layer_parameters, frozen, strict=True))

    @property
    def moved_layer_bytes(self) -> float:
        """Bytes that a peer fetches of a decoder layer which it has not served, in the mean: the state of what is
        trained, and the weights that are not. Those are drawn, and not fetched, where the model begins with none."""
        state = self.table.state_bytes * sum(self.trained_layer_parameters)
        return (state + sum(self.frozen_layer_bytes)) / self.layers

    @property
    def is_trained(self) -> tuple[bool, ...]:
        """Whether anything of each decoder layer is trained."""
        return tuple(count > 0 for count in self.trained_layer_parameters)

    @property
    def is_embedding_trained(self) -> bool:
        """Whether anything of what comes before the layers is trained."""
        return self.frozen_embedding_parameters < self.embedding_parameters

    @property
    def is_head_trained(self) -> bool:
        """Whether anything of what follows the layers is trained."""
        return self.frozen_head_parameters < self.head_parameters

    @property
    def measured_parameters(self) -> float:
        """Number of parameters that are trained of a layer of which any are, the mean: what peers measure is one. Where
        none are, as of a job that trains the head alone, they measure one all of which is."""
        counts = [count for count in self.trained_layer_parameters if count] or self.layer_parameters
        return sum(counts) / len(counts)

    @property
    def weight_share(self) -> float:
        """Products for the gradients of such a layer's weights, as a part of those of its forward."""
        measured = [
            whole for whole, is_trained in zip(self.layer_parameters, self.is_trained, strict=True) if is_trained
        ]
        return self.measured_parameters * len(measured) / sum(measured) if measured else 0.0

    def copied(self, first: int, end: int) -> int:
        """Return the number of the `parameters` of which products take a copy in bf16: of the layers and the head."""
        held = sum(self.copied_layer_parameters[first:end])
        return held + (self.copied_head_parameters if end == self.layers else 0)

    @property
    def input_bytes(self) -> int:
        """Bytes of one micro-batch between two layers, and so of a message once it is decoded."""
        return BOUNDARY_BYTES_PER_VALUE * self.message_values

    def memory_bytes(
        self,
        first: int,
        end: int,
        in_flight: int,
        *,
        waiting: int = 0,
        recompute: bool = False,
        reduced: CodecName | None = None,
        apart: bool = False,
    ) -> int:
        """Return the bytes of memory of a peer that serves `[first, end)`; the other arguments are those of
        `stage_bytes`.

        Args:
            apart: whether its device has memory of its own: that is meant then.
        """
        return stage_bytes(
            self.parameters(first, end),
            end - first,
            1 if end - first == self.layers else 2,
            in_flight,
            parameter_bytes=self.table.parameter_bytes - (self.table.host_bytes if apart else 0.0),
            activation_bytes=self.layer_activation_bytes,
            boundary_bytes=self.input_bytes,
            waiting=waiting,
            recompute=recompute,
            reduced=reduced,
            shared=self.shared_parameters(first, end),
            head_bytes=self.head_bytes + waiting * self.logits_gradient_bytes if end == self.layers else 0,
            frozen=self.frozen(first, end),
            frozen_bytes=self.frozen_bytes(first, end),
            copied=self.copied(first, end),
        )

    def host_bytes(self, first: int, end: int) -> int:
        """Return the bytes of the machine's memory of a peer that serves `[first, end)` on a device with its own."""
        return int(self.table.host_bytes * self.trained(first, end))

    def shared_parameters(self, first: int, end: int) -> int:
        """Return how many of the trained parameters of `[first, end)` another stage holds, too: those that are tied."""
        return self.trained_tied_parameters if (first == 0) != (end == self.layers) else 0

    def message_bytes(self, wire: Wire) -> tuple[int, int]:
        """Return the bytes of one micro-batch's messages over one boundary: ahead, and back."""
        shape = (self.message_values,)
        return payload_bytes(wire.activations, shape), payload_bytes(wire.gradients, shape)

    def gradient_bytes(self, first: int, end: int, wire: Wire) -> float:
        """Return the bytes of gradients that the replicas of `[first, end)` reduce a step among themselves, however
        they are cut into parts: without the tied ones where another stage holds the other end."""
        count = self.trained(first, end) - self.shared_parameters(first, end)
        return count * BYTES_A_VALUE[wire.gradients]

    def tied_gradient_bytes(self, wire: Wire) -> float:
        """Return the bytes of gradients that the peers of first and last stage, where those are two, reduce a step
        together."""
        return self.trained_tied_parameters * BYTES_A_VALUE[wire.gradients]

    def stage_seconds(
        self, first: int, end: int, layer: LayerSeconds, *, split: bool = False, recompute: bool = False
    ) -> ActionSeconds:
        """Return the seconds of one micro-batch through `[first, end)` on a peer that takes `layer` a layer.

        Args:
            split: whether the gradients of the weights are an action of their own.
            recompute: whether the backward begins with one more forward through the layers.
        """
        compute = stage_compute(
            first,
            end,
            self.is_trained,
            self.head_layers,
            embedding=self.is_embedding_trained,
            head=self.is_head_trained,
        )
        weight = compute.weight * layer.weight_part
        backward = compute.through * (layer.backward - layer.weight_part) + (0.0 if split else weight)
        if recompute:
            backward += (end - first) * layer.forward
        return ActionSeconds(compute.forward * layer.forward, backward, weight if split else 0.0)


def layer_seconds(nodes: Sequence[NodeView], demand: ModelDemand) -> dict[str, LayerSeconds]:
    """Return the seconds of one layer on each peer: as measured, else by its FLOP/s, else those of the slowest
    measured.

    FLOP/s, those in the job's precision, become seconds by the median of the peers that have both figures, else by
    `demand.layer_flops` with a backward that takes the forward's again, and for gradients of weights as much as
    `demand.weight_share` says. An optimizer step that was not measured takes as long as
    the slowest measured, or nothing where none was.

    Raises:
        UserError: nothing is known of any peer's speed.
    """
    known = {node.id: node.layer_seconds for node in nodes if node.layer_seconds is not None}
    rates = {node.id: node.flops_in(demand.precision) for node in nodes}
    both = [(flops, node.layer_seconds) for node in nodes if (flops := rates[node.id]) and node.layer_seconds]
    forward = median(flops * seconds.forward for flops, seconds in both) if both else demand.layer_flops
    backward = median(flops * seconds.backward for flops, seconds in both) if both else None
    weight = median(flops * seconds.weight_part for flops, seconds in both) if both else None
    share = demand.weight_share
    for node in nodes:
        flops = rates[node.id]
        if node.id not in known and flops and forward:
            gradients = share * forward if weight is None else weight
            known[node.id] = LayerSeconds(
                forward=forward / flops,
                backward=(backward or (1.0 + share) * forward) / flops,
                weight=gradients / flops if share < 1.0 else None,
            )
    if not known:
        raise UserError(
            "no peer's speed is known: no node has layer_seconds, or flops that can be used; give at least one node "
            f"flops (FLOP/s, in {demand.precision} where they are by precision), or let it measure the job's layer"
        )
    slowest = max(known.values(), key=lambda seconds: seconds.forward + seconds.backward)
    everyone = {node.id: known.get(node.id, slowest) for node in nodes}
    measured = [seconds.optimizer for seconds in everyone.values() if seconds.optimizer is not None]
    slowest_update = max(measured, default=0.0)
    return {
        peer: seconds if seconds.optimizer is not None else seconds.model_copy(update={"optimizer": slowest_update})
        for peer, seconds in everyone.items()
    }


def stage_seconds(plan: Plan, demand: ModelDemand, layers: Mapping[str, LayerSeconds]) -> dict[str, ActionSeconds]:
    """Return the seconds of one micro-batch through its stage on each peer of `plan`; `layers` has one layer's."""
    split = plan.schedule == "zero-bubble"
    return {
        peer: demand.stage_seconds(*layer_range, layers[peer], split=split, recompute=stage in plan.recompute)
        for stage, layer_range in enumerate(plan.stages)
        for peer in plan.replicas(stage)
    }


def optimizer_seconds(plan: Plan, demand: ModelDemand, layers: Mapping[str, LayerSeconds]) -> dict[str, float]:
    """Return the seconds of the optimizer step of its stage on each peer of `plan`."""
    each = demand.measured_parameters
    return {
        peer: (layers[peer].optimizer or 0.0) * demand.trained(*layer_range) / each
        for stage, layer_range in enumerate(plan.stages)
        for peer in plan.replicas(stage)
    }


def boundary_bytes(plan: Plan, demand: ModelDemand) -> tuple[tuple[int, int], ...]:
    """Return the bytes of one micro-batch's messages over each boundary of `plan`, in order: ahead, and back."""
    return tuple(map(demand.message_bytes, plan.wires))


def reduced_bytes(plan: Plan, demand: ModelDemand, one: Reduction) -> float:
    """Return the bytes of the gradients that a reduction of `plan` sums, as coded for the wire."""
    if one.is_shared:
        return demand.tied_gradient_bytes(plan.wire)
    return demand.gradient_bytes(*one.layers(plan), plan.wire)


def apart_of(nodes: Sequence[NodeView]) -> frozenset[str]:
    """Return the ids of the nodes whose device has memory of its own, apart from the machine's."""
    return frozenset(node.id for node in nodes if node.host_bytes is not None)


def memory_needed(plan: Plan, demand: ModelDemand, apart: Collection[str] = ()) -> dict[str, int]:
    """Return the bytes of memory that each peer of `plan` needs: of those in `apart`, whose devices have their own, of
    the device's."""
    return {
        peer: demand.memory_bytes(
            *layer_range,
            most_in_flight(orders(plan)[peer]),
            waiting=most_waiting(orders(plan)[peer]),
            recompute=stage in plan.recompute,
            reduced=plan.wire.gradients if len(plan.replicas(stage)) > 1 else None,
            apart=peer in apart,
        )
        + _gathered(plan, demand, peer, stage)
        for stage, layer_range in enumerate(plan.stages)
        for peer in plan.replicas(stage)
    }


def _gathered(plan: Plan, demand: ModelDemand, peer: str, stage: int) -> int:
    """Return what `peer`, which serves `stage`, takes beside what the search counts, as `gathered_beside`."""
    return gathered_beside(plan, peer, demand.trained(*plan.stages[stage]), demand.trained_tied_parameters)


def has_memory_to_sum(plan: Plan, demand: ModelDemand, nodes: Sequence[NodeView]) -> bool:
    """Return whether each peer of `plan`, which fits without its parts and trees, offers the memory for them."""
    stages = range(len(plan.stages))
    if not any(_gathered(plan, demand, peer, stage) for stage in stages for peer in plan.replicas(stage)):
        return True
    offered = {node.id: node.memory_bytes for node in nodes if node.memory_bytes is not None}
    needed = memory_needed(plan, demand, apart_of(nodes))
    return all(bytes_ <= offered.get(peer, math.inf) for peer, bytes_ in needed.items())


def host_memory_needed(plan: Plan, demand: ModelDemand, apart: Collection[str]) -> dict[str, int]:
    """Return the bytes of the machine's memory that those peers of `plan` need whose devices have their own."""
    return {
        peer: demand.host_bytes(*layer_range)
        for stage, layer_range in enumerate(plan.stages)
        for peer in plan.replicas(stage)
        if peer in apart
    }
