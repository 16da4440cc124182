"""Rules of the order of compute, on plain numbers: `schedule` plays a step by them, and so does the allocator's search.

Each calls nothing and works on numbers alone, so that the search can compile these very functions.
"""

MOST_MICROSECONDS = 3_600_000_000
"""Longest duration, transfer or delay of which an order of compute is made: an hour."""
FORWARD_COST, INPUT_COST, WEIGHT_COST = 1, 1, 1
"""Relative durations of a forward, and of a backward's two parts: the forward of a matrix, its input's gradient and
its own are products of the same size."""


def microseconds(seconds: float, least: int) -> int:
    """Return seconds, 0 or more, as the whole microseconds of which orders are made, from `least` to an hour."""
    if not seconds * 1e6 < MOST_MICROSECONDS:
        return MOST_MICROSECONDS
    return max(least, int(seconds * 1e6 + 0.5))


def backward_cost(split: bool) -> int:
    """Return the relative duration of a backward; where the schedule splits it, the weights' gradients come apart."""
    return INPUT_COST if split else INPUT_COST + WEIGHT_COST


def may_go_back(gpipe: bool, forwards_done: int, share: int) -> bool:
    """Whether a peer may start a backward that is ready, which then comes before all else."""
    return not gpipe or forwards_done >= share


def may_go_ahead(gpipe: bool, in_flight: int, limit: int, kept: int, most: int) -> bool:
    """Whether a peer may start a forward that is ready; `limit` and `most` are those of `limits`."""
    return gpipe or (in_flight < limit and kept < most)


def limits(share: int, least_later: int, stage: int, stages: int, split: bool) -> tuple[int, int]:
    """Return how many micro-batches a peer may have between forward and backward under 1F1B, and may keep in all.

    Equal peers need one for every stage from here to the end. One that feeds several slower-shared successors must be
    so many times further ahead to keep all of them busy. Where the weights' gradients come apart, every stage may put
    them off for as long as it then keeps no more than 1F1B's first stage does.

    Args:
        share: micro-batches of the peer in a step.
        least_later: micro-batches of the peer of a later stage that has the fewest; of no meaning on the last stage.
        stage: the peer's stage, from 0, of `stages`.
        split: whether the weights' gradients come apart.
    """
    later = stages - 1 - stage
    spread = -(-share // least_later) if later else 1
    limit = 1 + later * spread
    return limit, 1 + (stages - 1) * spread if split else limit
