"""Binary heap of numbers in two arrays, for compiled loops: the smallest key first."""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled

Keys = npt.NDArray[np.float64]
Values = npt.NDArray[np.int64]


@compiled
def push(keys: Keys, values: Values, size: int, key: float, value: int) -> int:
    """Add an entry to a heap of `size`, and return the new size. The arrays must have room."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if keys[parent] <= key:
            break
        keys[place], values[place] = keys[parent], values[parent]
        place = parent
    keys[place], values[place] = key, value
    return size + 1


@compiled
def pop(keys: Keys, values: Values, size: int) -> tuple[float, int, int]:
    """Take the entry with the smallest key off a heap of `size`; return its key, its value, and the new size."""
    key, value = keys[0], values[0]
    size -= 1
    moved_key, moved_value = keys[size], values[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= moved_key:
            break
        keys[place], values[place] = keys[child], values[child]
        place = child
    if size > 0:
        keys[place], values[place] = moved_key, moved_value
    return key, value, size
