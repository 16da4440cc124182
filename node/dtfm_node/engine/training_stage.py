"""A peer's slice of the model, with all that training needs of it: gradients, optimizer, state by parameter name."""

from collections.abc import Callable
from typing import Any

import torch

from dtfm_node.engine.bf16_weights import keep_in_bf16
from dtfm_node.engine.buckets import flats_of
from dtfm_node.engine.device import autocast
from dtfm_node.engine.final_groups import FinalGroups, Finished
from dtfm_node.engine.flat_gradients import FlatGradients
from dtfm_node.engine.frozen_forms import keep_forms
from dtfm_node.engine.layers import compile_layers, recompute
from dtfm_node.engine.optimizers import optimizer_of, update_after
from dtfm_node.engine.weight_gradients import Pending, WeightGradients
from dtfm_protocol.checkpoint.shard import torch_dtype
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import Training
from dtfm_protocol.model.base_forms import base_forms
from dtfm_protocol.model.frozen_parameters import frozen_names
from dtfm_protocol.model.initial_weights import initialise
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage import Stage, build_stage, loss_sum, right_count
from dtfm_protocol.model.tied_embeddings import shared_names
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import BUCKET_BYTES
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.wire.codecs import decode, encode, is_finite

Parameters = dict[str, torch.nn.Parameter]
"""Parameters by their names in the whole model."""


class Diverged(UserError):
    """The loss, an activation or a gradient is no longer finite."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} not finite; lower learning_rate, or check the data")


class TrainingStage:
    """The stage that `me` serves under `plan`. All methods are compute: they run on the compute thread.

    What comes from and goes to other peers are coded tensors, uint8 on the device.
    """

    def __init__(
        self,
        config: dict[str, Any],
        plan: Plan,
        me: str,
        training: Training,
        device: torch.device,
        *,
        compiled: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Build the stage, without weights; `training` has the sizes of a step under this plan."""
        index = plan.stage_of(me)
        assert index is not None, "only peers of the plan have a stage"
        self.index, self.is_first, self.is_last = index, index == 0, index == len(plan.stages) - 1
        first, end = plan.stages[index]
        self.config, self.training, self._device = config, training, device
        self._behind = plan.wire if self.is_first else plan.boundary_wire(index - 1)
        self._ahead = plan.wire if self.is_last else plan.boundary_wire(index)
        self.training_at: Callable[[int], Training] = lambda step: training
        """Returns the values by which the update of a step goes."""
        self.stage, self.parameters, self.frozen = _built(config, (first, end), training, device)
        """What is trained, by name, on which all of the state rests, and what stays as it begins."""
        groups = [[name for name in group if name in self.parameters] for group in self.stage.backward_order()]
        # torch.compile knows no gradient that has another type than its weight, and no integers for one.
        compiled = compiled and training.weights == training.lora.base == "fp32"
        self.hidden_size = model_sizes(config).hidden_size
        sizes = [{name: self.parameters[name].numel() for name in names} for names in groups]
        flats = flats_of(plan, index, sizes, shared_names(config), bucket_bytes)
        self.gradients = FlatGradients(flats, self.parameters, device)
        self.groups = FinalGroups(groups, self.parameters, len(plan.micro_batches(me)))
        # A compiled layer has no product of its own to take apart: its backward brings all gradients at once.
        self._matrices = WeightGradients([] if compiled else self.stage.modules())
        self._splits = plan.schedule == "zero-bubble"
        if index in plan.recompute:
            recompute(self.stage)
        if compiled:
            compile_layers(self.stage)
        if not self._splits:
            self.groups.watch(self.stage.layers(), first=self.is_first)
        self.optimizer = optimizer_of(training, self.parameters)
        self._in_flight: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._pending: dict[int, list[Pending]] = {}
        self.losses: dict[int, float] = {}
        self._targets = training.tokens
        """Number of targets of the step under way."""
        self._learned = True
        """Whether there are gradients of what is prepared."""
        self.layers: LayerRange = (first, end)
        self.mark: Mark | None = None
        """Which state this is; None while it is none: before it is loaded, and during an update."""
        self._kin: list[TrainingStage] = [self]
        """Those that share tensors with this one, and itself."""
        self.prepared: Mark | None = None
        """What it becomes when the gradients, which are then reduced and final, are applied."""
        self.commit: SignedCommit | None = None
        """The commit that made it final; None: not known, e.g. of the initial state."""
        self.before_update: Callable[[], None] = lambda: None
        """Returns when nobody reads this state any more."""
        self.after_update: list[Callable[[int, float, bool], None]] = []
        """Called after each update with its step, the norm of the whole model's gradient, and whether there was one:
        the gradients are still here."""

    def initialise(self) -> None:
        """Draw the initial weights of what is trained from the job's seed."""
        initialise(self.parameters, self.config, self.training.seed)
        self.mark = Mark()

    def adopt(self, key: str, value: torch.Tensor, lender: "TrainingStage") -> None:
        """Take over one tensor of another state of this process without a copy: an update of either ends the other."""
        if lender not in self._kin:
            kin = [*self._kin, *lender._kin]
            for state in kin:
                state._kin = kin
        kind, _, name = key.partition("/")
        if kind == "weight":
            self.parameters[name].data = value
        else:
            self.optimizer.moments[key] = value

    def settle(self, mark: Mark, commit: SignedCommit | None) -> None:
        """All tensors of the state `mark` are in their places; `commit` made it final."""
        self._matrices.forget()
        self.mark, self.commit = mark, commit

    def begin_step(self, finished: Finished, targets: int | None = None) -> None:
        """Forget gradients, losses and whatever an interrupted step left in flight.

        Args:
            targets: number of targets of the whole step, by which gradients are divided; None: each token is one.
        """
        self.prepared = None
        self._targets = self.training.tokens if targets is None else targets
        self._in_flight.clear()
        self._pending.clear()
        self.losses.clear()
        self.groups.begin(finished)
        self.gradients.zero()

    def _input(self, value: torch.Tensor, batch: int) -> torch.Tensor:
        """Tokens as they are, or the activation [batch, sequence, hidden] that was coded."""
        if self.is_first:
            return value.to(self._device)
        return decode(value, self._behind.activations, (batch, self.training.sequence_length, self.hidden_size))

    def forward(
        self,
        micro_batch: int,
        value: torch.Tensor,
        targets: torch.Tensor | None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Run one micro-batch forward and keep it for its backward; the coded output, or None on the last stage.

        Targets and positions are as in `MicroBatch`.

        Raises:
            Refused: the input does not decode.
            Diverged: the output is not finite.
        """
        x = self._input(value, self.training.micro_batch)
        if not self.is_first:
            x.requires_grad_()
        with autocast(self._device, self.training.precision):
            y = self.stage(x, self._placed(positions))
        if self.is_last:
            assert targets is not None
            y = loss_sum(y, targets.to(self._device))
            self.losses[micro_batch] = float(y.detach())
        self._in_flight[micro_batch] = (x, y)
        return None if self.is_last else self._output(y)

    def _placed(self, positions: torch.Tensor | None) -> torch.Tensor | None:
        return None if positions is None else positions.to(self._device)

    def _output(self, y: torch.Tensor) -> torch.Tensor:
        # Looked at before it is sent: what is not finite on arrival is then the sender's fault, not the mathematics'.
        if not is_finite(y.detach()):
            raise Diverged(f"an activation of stage {self.index + 1} is")
        return encode(y, self._ahead.activations)

    def backward(self, micro_batch: int, value: torch.Tensor | None) -> torch.Tensor | None:
        """Run one micro-batch backward; the coded gradient of its input, or None on the first stage.

        Gradients are of the loss's mean over the step's targets, so that their sum over micro-batches is the step's.
        Where the schedule splits the backward, those of matrices are left for `weight`.

        Raises:
            Refused: the gradient does not decode.
            Diverged: the gradient of the input is not finite.
        """
        x, y = self._in_flight[micro_batch]
        towards = None
        if not self.is_last:
            assert value is not None
            towards = decode(value, self._ahead.gradients, tuple(y.shape)).to(y.dtype)
        del self._in_flight[micro_batch]
        if self._splits:
            self._matrices.defer()
        if not y.requires_grad:
            pass  # all that comes before is frozen: there is no gradient to compute
        elif towards is None:
            (y / self._targets).backward()
        else:
            y.backward(towards)
        if self._splits:
            self._pending[micro_batch] = self._matrices.take_deferred()
        else:
            self.groups.summed()
        if self.is_first:
            return None
        assert x.grad is not None
        if not is_finite(x.grad):
            raise Diverged(f"the gradient before stage {self.index + 1} is")
        return encode(x.grad, self._behind.gradients)

    def weight(self, micro_batch: int) -> None:
        """Compute the gradients of matrices that a micro-batch's backward left."""
        self.groups.add(self._pending.pop(micro_batch))

    @torch.no_grad()
    def evaluate(
        self, value: torch.Tensor, targets: torch.Tensor | None, batch: int, positions: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[float, int]:
        """Run one evaluation micro-batch of `batch` sequences: the coded output, or on the last stage the summed loss,
        and how many targets were foretold as the likeliest token.

        Raises:
            Refused: the input does not decode.
            Diverged: the output is not finite.
        """
        with autocast(self._device, self.training.precision):
            y = self.stage(self._input(value, batch), self._placed(positions))
        if not self.is_last:
            return self._output(y)
        assert targets is not None
        there = targets.to(self._device)
        return float(loss_sum(y, there)), right_count(y, there)

    def prepare(self, mark: Mark, *, learned: bool = True) -> None:
        """The gradients are reduced: nothing but the word that they are final is missing for `mark`.

        Args:
            learned: whether there are any; without, the state becomes `mark` as it is.
        """
        self.prepared, self._learned = mark, learned

    def apply(self, grad_norm: float, commit: SignedCommit | None) -> None:
        """Make the prepared state the present one: clip by the whole model's norm and update the stage.

        Args:
            grad_norm: as `commit`, which made the step final, says it.
        """
        for state in self._kin:
            state.before_update()  # a snapshot of a state that shares these tensors may still be on its way to the disk
        for state in self._kin:
            state.mark = None
            state._kin = [state]
        becomes, self.prepared, self.mark = self.prepared, None, None
        assert becomes is not None, "only what is prepared is applied"
        if self._learned:
            update_after(self.optimizer, self.training_at(becomes.step), becomes.step, grad_norm)
            self._matrices.forget()
        else:
            self.optimizer.begin()
        self.mark, self.commit = becomes, commit
        for told in tuple(self.after_update):
            told(becomes.step, grad_norm, self._learned)


def trained_shapes(config: dict[str, Any], layers: LayerRange, training: Training) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what the stage of `layers` trains, by name; no memory is taken."""
    _, parameters, _ = _built(config, layers, training, torch.device("meta"))
    return {name: tuple(parameter.shape) for name, parameter in parameters.items()}


def _built(
    config: dict[str, Any], layers: LayerRange, training: Training, device: torch.device
) -> tuple[Stage, Parameters, Parameters]:
    """Build a stage with its adapters, its weights in their forms; return it with what the job trains of it, and what
    it does not, which takes no gradient."""
    forms = base_forms(config, training) if training.method == "lora" else {}
    dtypes = {name: torch_dtype(form.dtype) for name, form in forms.items()}
    stage = build_stage(config, *layers, device, dtypes)
    if training.method == "lora":
        stage.adapt(config, training.lora)
    held, frozen = stage.named_state(), frozen_names(config, training)
    for name in frozen & held.keys():
        held[name].requires_grad_(False)
    if training.weights == "bf16":
        keep_in_bf16(stage, own_products=True)
    trained = {name: parameter for name, parameter in held.items() if name not in frozen}
    untrained = {name: parameter for name, parameter in held.items() if name in frozen}
    return stage, trained, untrained | keep_forms(stage.model, untrained, forms)
