"""Which groups of a stage's gradients are final: known while the last micro-batch's backward still runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dtfm_node.engine.weight_gradients import Pending, accumulate

Finished = Callable[[int], None]
"""Told, on the compute thread, that the gradients of the stage's groups up to this one are final."""


class FinalGroups:
    """The groups of a stage's parameters, in the order in which a backward is through with them, and how far a step is.

    A group's gradients are final when those of the last of this peer's micro-batches have been added to them.
    """

    def __init__(self, order: Sequence[Sequence[str]], parameters: Mapping[str, nn.Parameter], share: int) -> None:
        self.last = len(order) - 1
        """The group with which a backward ends."""
        self._group_of = {id(parameters[name]): number for number, names in enumerate(order) for name in names}
        self._share = share
        """Micro-batches of this peer in a step."""
        self._summed = 0
        """Micro-batches whose gradients are all in."""
        self._finished: Finished = lambda group: None

    def begin(self, finished: Finished) -> None:
        """A new step, of which nothing is in yet."""
        self._summed, self._finished = 0, finished

    def watch(self, layers: Sequence[nn.Module], *, first: bool) -> None:
        """Have the backward say when it is through with a layer: when it has the gradient of the layer's input.

        Args:
            first: whether the model begins with these layers: the first one's input, the embedding, has a gradient.
        """
        for place, layer in enumerate(layers):
            if place > 0 or first:
                layer.register_forward_pre_hook(self._watcher(len(layers) - place), with_kwargs=True)

    def _watcher(self, group: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def reached(_: torch.Tensor) -> None:
            self._passed(group)

        def watch(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            if hidden.requires_grad:
                hidden.register_hook(reached)

        return watch

    def add(self, pending: list[Pending]) -> None:
        """Add the gradients of matrices that a micro-batch's backward left, and let go of what they are made of."""
        left = Counter(self._group_of[id(weight)] for weight, *_ in pending)
        through = -1
        pending.reverse()  # taken from the end, so that each one's tensors are let go when it is done
        while pending:
            one = pending.pop()
            accumulate(one)
            left[self._group_of[id(one[0])]] -= 1
            while through < self.last and not left[through + 1]:
                through += 1
                self._passed(through)
        self.summed()

    def _passed(self, group: int) -> None:
        """The micro-batch under way has added its gradients to the groups up to this one."""
        if self._summed == self._share - 1:
            self._finished(group)

    def summed(self) -> None:
        """The gradients of one more micro-batch are all in."""
        self._summed += 1
        if self._summed == self._share:
            self._finished(self.last)
