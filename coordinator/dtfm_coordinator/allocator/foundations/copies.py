"""Copies between arrays in compiled code that makes no array: numba's own assignment may make one in between."""

from typing import Any

import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import inlined


@inlined
def copy_into(into: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    """Copy `values`, shape (n,), into another array of that shape."""
    for place in range(len(into)):
        into[place] = values[place]
