"""AdamW's update on a processor, compiled: one pass over memory in place of one for each operation, and the same bits.

Each operation is rounded by itself, as `compiled_loop` compiles it.
"""

import numpy as np
import numpy.typing as npt

from dtfm_node.engine.compiled_loop import compiled_loop

Values = npt.NDArray[np.float32]
_SIGNATURE = "void(f4[::1], f4[::1], f4[::1], f4[::1], f4, f4, f4, f4, f4, f4, f4, b1)"


@compiled_loop(_SIGNATURE)
def advance(
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
    """Update fp32 [elements] each of weight and moments in place by a gradient and `AdamWScalars` as fp32 numbers, in
    their order."""
    for index in range(len(weight)):
        kept, scaled = mean[index] * kept_mean, gradient[index] * to_mean
        mean[index] = kept + scaled
        root = gradient[index] * to_root
        square[index] = square[index] * kept_square + root * root
        change = mean[index] / (np.sqrt(square[index]) + epsilon) * rate
        decayed = weight[index] * kept_weight if decays else weight[index]
        weight[index] = decayed - change
