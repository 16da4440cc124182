"""Sums of squares and of products on a processor, compiled: one pass over memory for all that is asked of a part."""

import numpy as np
import numpy.typing as npt

from dtfm_node.engine.compiled_loop import compiled_loop

Values = npt.NDArray[np.float32]


@compiled_loop("void(f4[::1], f8[::1])")
def add_squares(values: Values, lanes: npt.NDArray[np.float64]) -> None:
    """Add the squares of fp32 [elements] to lanes, as `gradient_norm.sum_of_squares` says, with the same bits."""
    for start in range(0, len(values), len(lanes)):
        run = values[start : start + len(lanes)]  # its own indices begin at 0, so that the loop is vectorised
        for lane in range(len(run)):
            wide = np.float64(run[lane])
            lanes[lane] += wide * wide


# In whatever order: what comes of it is compared with bounds far away.
@compiled_loop("UniTuple(f8, 3)(f4[::1], f4[::1])", fastmath={"reassoc", "nsz", "contract"})
def products(own: Values, other: Values) -> tuple[float, float, float]:
    """Return the sums of squares of two parts, fp32 [elements] each, and that of their products."""
    mine = theirs = both = 0.0
    for index in range(len(own)):
        a, b = np.float64(own[index]), np.float64(other[index])
        mine += a * a
        theirs += b * b
        both += a * b
    return mine, theirs, both
