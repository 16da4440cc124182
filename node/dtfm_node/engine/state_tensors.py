"""Tensors of a state, weights and moments, by the names that checkpoints give them."""

from collections.abc import Iterator

import torch

from dtfm_node.engine.elementwise_update import ElementwiseUpdate
from dtfm_protocol.checkpoint.state_slots import WEIGHT


def state_tensors(
    parameters: dict[str, torch.nn.Parameter], optimizer: ElementwiseUpdate
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that there are of a state, as a checkpoint names them: "SLOT/NAME"."""
    for name, parameter in sorted(parameters.items()):
        yield f"{WEIGHT}/{name}", parameter.detach()
        for slot in optimizer.table.moments:
            if (key := f"{slot.name}/{name}") in optimizer.moments:
                yield key, optimizer.moments[key]


def load_tensor(
    parameters: dict[str, torch.nn.Parameter], optimizer: ElementwiseUpdate, key: str, value: torch.Tensor
) -> None:
    """Put a copy of one tensor of a state, named as in a checkpoint, in its place."""
    kind, _, name = key.partition("/")
    parameter = parameters[name]
    if kind == WEIGHT:
        with torch.no_grad():
            parameter.copy_(value)
    else:
        optimizer.put(key, value)
