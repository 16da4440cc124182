"""Binary heap of numbered events in two arrays, for compiled loops: the earliest first, of those the lowest number."""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_in_place

Times = npt.NDArray[np.float64] | npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int64]


@compiled_in_place
def push(times: Times, numbers: Numbers, size: int, time: float, number: int) -> int:
    """Add an event to a heap of `size`, and return the new size. The arrays must have room."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if times[parent] < time or (times[parent] == time and numbers[parent] <= number):
            break
        times[place], numbers[place] = times[parent], numbers[parent]
        place = parent
    times[place], numbers[place] = time, number
    return size + 1


@compiled_in_place
def pop(times: Times, numbers: Numbers, size: int) -> tuple[float, int, int]:
    """Take the first event off a heap of `size`; return its time, its number, and the new size."""
    time, number = times[0], numbers[0]
    size -= 1
    moved_time, moved = times[size], numbers[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            times[other] < times[child] or (times[other] == times[child] and numbers[other] < numbers[child])
        ):
            child = other
        if times[child] > moved_time or (times[child] == moved_time and numbers[child] >= moved):
            break
        times[place], numbers[place] = times[child], numbers[child]
        place = child
    if size > 0:
        times[place], numbers[place] = moved_time, moved
    return time, number, size
