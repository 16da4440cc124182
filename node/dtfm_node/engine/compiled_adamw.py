"""AdamW's update on a processor, compiled: one pass over memory in place of one for each operation, and the same bits.

Each operation is rounded by itself: without numba's `fastmath` the compiler may neither fuse a product with a sum nor
change their order, on any processor.
"""

import numba
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
_SIGNATURE = "void(f4[::1], f4[::1], f4[::1], f4[::1], f4, f4, f4, f4, f4, f4, f4, b1)"


def _advance(
    weight: Values,
    gradient: Values,
    mean: Values,
    square: Values,
    kept_mean: float,
    to_mean: float,
    kept_square: float,
    to_root: float,
    epsilon: float,
    rate: float,
    kept_weight: float,
    decays: bool,
) -> None:
    for index in range(len(weight)):
        kept, scaled = mean[index] * kept_mean, gradient[index] * to_mean
        mean[index] = kept + scaled
        root = gradient[index] * to_root
        square[index] = square[index] * kept_square + root * root
        change = mean[index] / (np.sqrt(square[index]) + epsilon) * rate
        decayed = weight[index] * kept_weight if decays else weight[index]
        weight[index] = decayed - change


def _compiled(*, kept: bool) -> numba.core.dispatcher.Dispatcher:
    # By numpy's rules a division by zero gives an infinity and raises nothing, so that the loop has no branches.
    return numba.njit(_SIGNATURE, cache=kept, nogil=True, error_model="numpy")(_advance)


try:
    advance = _compiled(kept=True)
    """Update fp32 [elements] each of weight and moments in place by a gradient and `AdamWScalars` as fp32 numbers, in
    their order, while other threads run."""
except RuntimeError:  # there is no folder for machine code that may be written to
    advance = _compiled(kept=False)
