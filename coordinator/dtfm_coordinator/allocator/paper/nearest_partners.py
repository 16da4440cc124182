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
    """Seconds, there and back, of each device's nearest partners in each stage, itself left out."""

    seconds: Matrix
    """With the nearest one, shape (N, K); infinite where there is none."""
    devices: Index
    """Which one that is, shape (N, K); any of the stage's where there is none."""
    others: Matrix
    """With the nearest of the others, shape (N, K); infinite where there is none."""

    @classmethod
    def of_size(cls, devices: int, stages: int) -> Self:
        """Return that of so many devices and stages with nothing looked for yet."""
        shape = devices, stages
        return cls(np.full(shape, np.inf), np.zeros(shape, dtype=np.int64), np.full(shape, np.inf))


@compiled_in_place_inside
def look_in_stage(both: Matrix, order: Index, stage: int, replicas: int, nearest: NearestPartners) -> None:
    """Look for every device's nearest partners in a stage, and note them.

    Args:
        both: seconds there and back of each pair of devices, shape (N, N).
        order: devices, `replicas` of each stage after another.
    """
    for device in range(len(both)):
        least, least_of_others, partner = np.inf, np.inf, int(order[stage * replicas])
        for position in range(stage * replicas, (stage + 1) * replicas):
            other = order[position]
            seconds = both[device, other]
            if other == device:
                continue
            if seconds < least:
                least_of_others, least, partner = least, seconds, int(other)
            elif seconds < least_of_others:
                least_of_others = seconds
        nearest.seconds[device, stage] = least
        nearest.devices[device, stage] = partner
        nearest.others[device, stage] = least_of_others


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
