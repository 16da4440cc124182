"""A peer's slice of the model, with all that training needs of it: gradients, optimizer, state by parameter name."""

from collections.abc import Iterator
from typing import Any

import torch

from dtfm_node.engine.buckets import Bucket, buckets_of
from dtfm_node.engine.exchange import Received
from dtfm_protocol.codecs import decode, encode
from dtfm_protocol.job import Precision, Training
from dtfm_protocol.model.initial import initialise
from dtfm_protocol.model.shared import shared_names
from dtfm_protocol.model.sizes import model_sizes
from dtfm_protocol.model.stage import Stage, build_stage, loss_sum
from dtfm_protocol.plan import Plan

MOMENTS = ("exp_avg", "exp_avg_sq")


def make_optimizer(parameters: dict[str, torch.nn.Parameter], weight_decay: float) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only, the learning rate set at every step."""
    matrices = [parameter for _, parameter in sorted(parameters.items()) if parameter.ndim >= 2]
    vectors = [parameter for _, parameter in sorted(parameters.items()) if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=(0.9, 0.95), eps=1e-8)


def clip_factor(grad_norm: float, clip_norm: float) -> float:
    """What gradients are multiplied by so that their global norm stays within `clip_norm` (0: no clipping)."""
    return min(1.0, clip_norm / (grad_norm + 1e-6)) if clip_norm > 0 else 1.0


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context of a forward: bf16 products over fp32 weights, or nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def state_tensors(
    parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights and moments as a checkpoint names them: "weight/NAME", "exp_avg/NAME", "exp_avg_sq/NAME"."""
    for name, parameter in sorted(parameters.items()):
        yield f"weight/{name}", parameter.detach()
        for moment in MOMENTS:
            if parameter in optimizer.state:
                yield f"{moment}/{name}", optimizer.state[parameter][moment]


def load_tensor(
    parameters: dict[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    step: int,
    key: str,
    value: torch.Tensor,
) -> None:
    """Put one tensor of a checkpoint of `step` in its place."""
    kind, _, name = key.partition("/")
    parameter = parameters[name]
    if kind == "weight":
        with torch.no_grad():
            parameter.copy_(value)
        return
    state = optimizer.state[parameter]
    state.setdefault("step", torch.tensor(float(step)))
    state[kind] = value.to(parameter.device, parameter.dtype).clone()


def state_keys(names: Iterator[str] | list[str], step: int) -> tuple[str, ...]:
    """The keys that a checkpoint of `step` holds for parameters `names`; step 0 has no moments."""
    kinds = ("weight", *MOMENTS) if step > 0 else ("weight",)
    return tuple(f"{kind}/{name}" for name in sorted(names) for kind in kinds)


class StageState:
    """The stage that `me` serves under `plan`. All methods are compute: they run on the compute thread."""

    def __init__(self, config: dict[str, Any], plan: Plan, me: str, training: Training, device: torch.device) -> None:
        index = plan.stage_of(me)
        assert index is not None, "only peers of the plan have a stage"
        self.index = index
        self.is_first, self.is_last = index == 0, index == len(plan.stages) - 1
        first, end = plan.stages[index]
        self._config, self._training, self._device, self._wire = config, training, device, plan.wire
        self.stage: Stage = build_stage(config, first, end, device)
        self.parameters = self.stage.named_state()
        self.hidden_size = model_sizes(config).hidden_size
        sizes = {name: parameter.numel() for name, parameter in self.parameters.items()}
        self.buckets: tuple[Bucket, ...] = buckets_of(plan, index, sizes, shared_names(config))
        self.gradients = {
            bucket.group: torch.zeros(bucket.elements, dtype=torch.float32, device=device) for bucket in self.buckets
        }
        self._lay_gradients()
        self.optimizer = make_optimizer(self.parameters, training.weight_decay)
        self._in_flight: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.losses: dict[int, float] = {}

    def _lay_gradients(self) -> None:
        """Make every gradient a view into its bucket's flat buffer, so that reducing needs no copy."""
        for bucket in self.buckets:
            offset = 0
            for name in bucket.names:
                parameter = self.parameters[name]
                end = offset + parameter.numel()
                parameter.grad = self.gradients[bucket.group][offset:end].view_as(parameter)
                offset = end

    def initialise(self) -> None:
        """Draw the initial weights from the job's seed."""
        initialise(self.stage, self._config, self._training.seed)

    def begin_step(self) -> None:
        """Forget gradients, losses and whatever an interrupted step left in flight."""
        self._in_flight.clear()
        self.losses.clear()
        for gradient in self.gradients.values():
            gradient.zero_()

    def _input(self, value: torch.Tensor | Received, batch: int) -> torch.Tensor:
        """Tokens as they are, or the activation [batch, sequence, hidden] that a frame carries."""
        if isinstance(value, torch.Tensor):
            return value.to(self._device)
        shape = (batch, self._training.sequence_length, self.hidden_size)
        return decode(value.payload, value.scale, self._wire, shape).to(self._device)

    def forward(
        self, micro_batch: int, value: torch.Tensor | Received, targets: torch.Tensor | None
    ) -> tuple[memoryview, float] | None:
        """Run one micro-batch forward and keep it for its backward; the coded output, or None on the last stage."""
        x = self._input(value, self._training.micro_batch)
        if not self.is_first:
            x.requires_grad_()
        with autocast(self._device, self._training.precision):
            y = self.stage(x)
        if self.is_last:
            assert targets is not None
            y = loss_sum(y, targets.to(self._device))
            self.losses[micro_batch] = float(y.detach())
        self._in_flight[micro_batch] = (x, y)
        return None if self.is_last else encode(y, self._wire)

    def backward(self, micro_batch: int, value: Received | None) -> tuple[memoryview, float] | None:
        """Run one micro-batch backward; the coded gradient of its input, or None on the first stage.

        Gradients are of the loss's mean over the global batch, so that their sum over micro-batches is the step's.
        """
        x, y = self._in_flight.pop(micro_batch)
        if self.is_last:
            (y / self._training.tokens).backward()
        else:
            assert value is not None
            y.backward(decode(value.payload, value.scale, self._wire, tuple(y.shape)).to(y.device, y.dtype))
        if self.is_first:
            return None
        assert x.grad is not None
        return encode(x.grad, self._wire)

    @torch.no_grad()
    def evaluate(
        self, value: torch.Tensor | Received, targets: torch.Tensor | None, batch: int
    ) -> tuple[memoryview, float] | float:
        """Run one evaluation micro-batch of `batch` sequences: the coded output, or on the last stage the loss."""
        with autocast(self._device, self._training.precision):
            y = self.stage(self._input(value, batch))
        if not self.is_last:
            return encode(y, self._wire)
        assert targets is not None
        return float(loss_sum(y, targets.to(self._device)))

    @torch.no_grad()
    def apply(self, step: int, grad_norm: float) -> None:
        """Clip by the whole model's norm and let AdamW update the stage."""
        factor = clip_factor(grad_norm, self._training.clip_norm)
        if factor < 1.0:
            for gradient in self.gradients.values():
                gradient.mul_(factor)
        for group in self.optimizer.param_groups:
            group["lr"] = self._training.learning_rate_at(step)
        self.optimizer.step()
