"""Norm of gradients and their clip, which swarm and `solo` share."""

import torch

_LANES = 1 << 16
"""Number of sums that run side by side over the values: so few that they stay in a cache, and part of what the result
is."""


def sum_of_squares(values: torch.Tensor) -> float:
    """Return the sum of squares of fp32 values, in fp64 and in a stated order: the same bits on every device.

    A square of an fp32 value is exact in fp64. Value number i goes to lane i mod 65,536, each lane adds its squares in
    their order, and then the upper half of the lanes is added to the lower half until one is left. All of it is
    elementwise: no reduction whose order a library chooses.
    """
    flat = values.detach().reshape(-1)
    if flat.device.type == "mps":  # it has no fp64
        flat = flat.cpu()
    used = min(_LANES, 1 << max(0, len(flat) - 1).bit_length())  # the others would add zeros
    lanes = torch.zeros(used, dtype=torch.float64, device=flat.device)
    if flat.device.type == "cpu":
        # Loaded when it is first wanted: numba takes half a second.
        from dtfm_node.engine.compiled_norms import add_squares

        add_squares(flat.contiguous().numpy(), lanes.numpy())
    else:
        for run in flat.split(_LANES):
            wide = run.double()
            lanes[: len(run)].addcmul_(wide, wide)  # fused or not: the product is exact
    while len(lanes) > 1:
        lower, upper = lanes.split(len(lanes) // 2)
        lanes = lower.add_(upper)
    return float(lanes)


def load_sums() -> None:
    """Load now what the first sum on a processor would."""
    import dtfm_node.engine.compiled_norms  # noqa: F401


def clip_factor(grad_norm: float, clip_norm: float) -> float:
    """Return the factor by which gradients are multiplied so that their global norm stays within `clip_norm` (0: no
    clipping)."""
    return min(1.0, clip_norm / (grad_norm + 1e-6)) if clip_norm > 0 else 1.0
