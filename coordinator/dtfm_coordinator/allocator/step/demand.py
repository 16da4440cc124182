"""What a model asks of the peers that serve its stages: parameters, memory, messages, gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dtfm_protocol.errors import UserError
from dtfm_protocol.job import Wire
from dtfm_protocol.model.memory import BYTES_PER_PARAMETER
from dtfm_protocol.plan import Plan
from dtfm_protocol.view import LayerSeconds, NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDemand:
    """Sizes of a decoder-only model and of one micro-batch of its job."""

    layer_parameters: tuple[int, ...]
    """Of each decoder layer."""
    embedding_parameters: int
    """What the first stage holds beside its layers."""
    head_parameters: int
    """What the last stage holds beside its layers: final norm and output matrix, a tied one included."""
    tied_parameters: int = 0
    """How many of the embedding's parameters the head shares: a single stage holds them once."""
    message_values: int
    """Numbers in one boundary message: sequences of a micro-batch x sequence length x hidden size."""
    layer_activation_bytes: int
    """Kept from a micro-batch's forward to its backward, for each layer."""
    head_bytes: int = 0
    """Further memory of the last stage: logits of one micro-batch and what their backward takes."""
    head_layers: float = 0.0
    """Compute of the head and the loss, in decoder layers."""
    layer_flops: float | None = None
    """FLOP of one layer's forward on one micro-batch, for peers that publish their FLOP/s alone."""

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_parameters)

    def parameters(self, first: int, end: int) -> int:
        """Parameters of the stage that holds layers `[first, end)`, with the embedding or head beside them."""
        count = sum(self.layer_parameters[first:end])
        if first == 0:
            count += self.embedding_parameters
        if end == self.layers:
            count += self.head_parameters
            if first == 0:
                count -= self.tied_parameters
        return count

    def memory_bytes(self, first: int, end: int, in_flight: int) -> int:
        """Memory of a peer that serves `[first, end)` with up to `in_flight` micro-batches awaiting their backward."""
        held = BYTES_PER_PARAMETER * self.parameters(first, end)
        held += in_flight * (end - first) * self.layer_activation_bytes
        return held + (self.head_bytes if end == self.layers else 0)

    def message_bytes(self, wire: Wire) -> int:
        """Bytes of one micro-batch's message over one boundary, either way."""
        return self.message_values * _width(wire)

    def gradient_bytes(self, first: int, end: int, wire: Wire) -> int:
        """Bytes of gradients that the replicas of `[first, end)` reduce a step."""
        return self.parameters(first, end) * _width(wire)

    def stage_seconds(self, first: int, end: int, layer: LayerSeconds) -> LayerSeconds:
        """Seconds of one micro-batch through `[first, end)` on a peer that takes `layer` for one layer."""
        layers = end - first + (self.head_layers if end == self.layers else 0.0)
        return LayerSeconds(forward=layers * layer.forward, backward=layers * layer.backward)


def layer_seconds(nodes: Sequence[NodeView], demand: ModelDemand) -> dict[str, LayerSeconds]:
    """Seconds of one layer on each peer: as measured, else by its FLOP/s, else as slow as the slowest measured.

    FLOP/s become seconds by the median of the peers that have both figures, else by `demand.layer_flops` with a
    backward of twice the forward. An optimizer step that was not measured takes as long as the slowest measured, or
    nothing where none was.

    Raises:
        UserError: nothing is known of any peer's speed.
    """
    known = {node.id: node.layer_seconds for node in nodes if node.layer_seconds is not None}
    both = [(node.flops, node.layer_seconds) for node in nodes if node.flops and node.layer_seconds]
    forward = median(flops * seconds.forward for flops, seconds in both) if both else demand.layer_flops
    backward = median(flops * seconds.backward for flops, seconds in both) if both else None
    for node in nodes:
        if node.id not in known and node.flops and forward:
            known[node.id] = LayerSeconds(forward=forward / node.flops, backward=(backward or 2 * forward) / node.flops)
    if not known:
        raise UserError(
            "no peer's speed is known: the view has neither layer_seconds nor flops that can be used; "
            "let at least one peer measure the job's layer"
        )
    slowest = max(known.values(), key=lambda seconds: seconds.forward + seconds.backward)
    everyone = {node.id: known.get(node.id, slowest) for node in nodes}
    measured = [seconds.optimizer for seconds in everyone.values() if seconds.optimizer is not None]
    slowest_update = max(measured, default=0.0)
    return {
        peer: seconds if seconds.optimizer is not None else seconds.model_copy(update={"optimizer": slowest_update})
        for peer, seconds in everyone.items()
    }


def stage_seconds(plan: Plan, demand: ModelDemand, layers: Mapping[str, LayerSeconds]) -> dict[str, LayerSeconds]:
    """Seconds of one micro-batch through its stage on each peer of `plan`; `layers` are those of one layer."""
    return {peer: demand.stage_seconds(*_span(plan, peer), layers[peer]) for peer in plan.peers}


def optimizer_seconds(plan: Plan, demand: ModelDemand, layers: Mapping[str, LayerSeconds]) -> dict[str, float]:
    """Seconds of the optimizer step of its stage on each peer of `plan`."""
    each = sum(demand.layer_parameters) / demand.layers
    return {peer: (layers[peer].optimizer or 0.0) * demand.parameters(*_span(plan, peer)) / each for peer in plan.peers}


def _span(plan: Plan, peer: str) -> tuple[int, int]:
    stage = plan.stage_of(peer)
    assert stage is not None
    return plan.stages[stage]


def _width(wire: Wire) -> int:
    return 4 if wire == "fp32" else 2
