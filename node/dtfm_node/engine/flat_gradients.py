"""The gradients of a stage in flat buffers: what buckets are runs of."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from dtfm_node.engine.buckets import Bucket, Flat


class FlatGradients:
    """Buffers of which the gradient of every parameter, and of every bucket, is a view: reducing needs no copy.

    All tensors are float32 [elements], on the device of the stage, and zero at first.
    """

    def __init__(self, flats: Sequence[Flat], parameters: Mapping[str, nn.Parameter], device: torch.device) -> None:
        self.buckets: tuple[tuple[Bucket, ...], ...] = tuple(flat.buckets for flat in flats)
        """The buckets of each buffer, in the order in which they become final; buffers in that of their priorities."""
        self.of_bucket: dict[int, torch.Tensor] = {}
        """The gradient of each bucket, by its number."""
        self.shared: frozenset[str] = frozenset()
        """The parameters that first and last stage share."""
        for flat in flats:
            buffer = torch.zeros(flat.elements, device=device)
            sizes = [parameters[name].numel() for name in flat.names]
            for name, piece in zip(flat.names, buffer.split(sizes), strict=True):
                parameters[name].grad = piece.view_as(parameters[name])
            for bucket in flat.buckets:
                self.of_bucket[bucket.group] = buffer[bucket.start : bucket.start + bucket.elements]
                if bucket.reduction.is_shared:
                    self.shared = frozenset(flat.names)

    def zero(self) -> None:
        """Forget what has been summed."""
        for gradient in self.of_bucket.values():
            gradient.zero_()
