"""Nearest partner of each device in each stage, so that what a boundary costs at least is known in one look a device.

A boundary's messages go there and back between pairs of its two stages' devices, and take as long as the slowest pair's
each way. So whatever the pairs are, a boundary takes as long as any of its devices does with its nearest partner. Most
exchanges of two devices are turned down by that.
"""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_in_place_inside

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


class NearestPartners(NamedTuple):
    """Seconds, there and back, of each device's two nearest partners in each stage, itself left out."""

    seconds: Matrix
    """With the nearest one, shape (N, K); infinite where there is none."""
    others: Matrix
    """With the nearest of the others, in the same shape; infinite where there is none."""
    devices: Index
    """Which the nearest one is, in the same shape; -1 where there is none."""
    next: Index
    """Which the nearest of the others is, likewise."""

    @classmethod
    def of_size(cls, devices: int, stages: int) -> Self:
        """Return that of so many devices and stages with nothing looked for yet."""
        shape = devices, stages
        nobody = np.full(shape, -1, dtype=np.int64)
        return cls(np.full(shape, np.inf), np.full(shape, np.inf), nobody, nobody.copy())


@compiled_in_place_inside
def look_in_stage(both: Matrix, order: Index, stage: int, replicas: int, nearest: NearestPartners) -> None:
    """Look for every device's nearest partners in a stage, and note them.

    Args:
        both: seconds there and back of each pair of devices, shape (N, N).
        order: devices, `replicas` of each stage after another.
    """
    for device in range(len(both)):
        _look_for(both, order, device, stage, replicas, nearest)


@compiled_in_place_inside
def look_at_newcomer(
    both: Matrix, order: Index, stage: int, replicas: int, leaver: int, newcomer: int, nearest: NearestPartners
) -> None:
    """Note every device's nearest partners in a stage after one has left that and another one has come, as `order` has
    it."""
    for device in range(len(both)):
        if nearest.devices[device, stage] == leaver or nearest.next[device, stage] == leaver:
            _look_for(both, order, device, stage, replicas, nearest)
        elif device != newcomer:
            _note(both, device, stage, newcomer, nearest)


@compiled_in_place_inside
def _look_for(both: Matrix, order: Index, device: int, stage: int, replicas: int, nearest: NearestPartners) -> None:
    nearest.seconds[device, stage] = nearest.others[device, stage] = np.inf
    nearest.devices[device, stage] = nearest.next[device, stage] = -1
    for position in range(stage * replicas, (stage + 1) * replicas):
        if order[position] != device:
            _note(both, device, stage, int(order[position]), nearest)


@compiled_in_place_inside
def _note(both: Matrix, device: int, stage: int, other: int, nearest: NearestPartners) -> None:
    """Note another one of a stage, if it is one of a device's two nearest partners there."""
    seconds = both[device, other]
    if seconds < nearest.seconds[device, stage]:
        nearest.others[device, stage] = nearest.seconds[device, stage]
        nearest.next[device, stage] = nearest.devices[device, stage]
        nearest.seconds[device, stage], nearest.devices[device, stage] = seconds, other
    elif seconds < nearest.others[device, stage]:
        nearest.others[device, stage], nearest.next[device, stage] = seconds, other


@compiled_in_place_inside
def seconds_with_nearest(seconds: Matrix, order: Index, stage: int, replicas: int) -> float:
    """Return the seconds of a device outside a stage with its nearest partner there, where partners are not kept.

    Args:
        seconds: there and back, with each device, shape (N,).
    """
    least = np.inf
    for position in range(stage * replicas, (stage + 1) * replicas):
        least = min(least, seconds[order[position]])
    return float(least)


@compiled_in_place_inside
def least_seconds(
    both: Matrix, nearest: NearestPartners, device: int | np.int64, stage: int, leaver: int, newcomer: int
) -> float:
    """Return the seconds of a device with its nearest partner in a stage, once one has left that and another one has
    come; -1 for both where it stays as it is."""
    least = nearest.seconds[device, stage]
    if leaver < 0:
        return float(least)
    if nearest.devices[device, stage] == leaver:
        least = nearest.others[device, stage]
    return float(min(least, both[device, newcomer]))
