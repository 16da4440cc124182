"""Bottleneck matching: pairs two groups of devices one to one so that the slowest pair is as fast as possible.

A perfect matching is improved from above: its slowest pair is dissolved, and the row so freed looks for the path of
alternating pairs back to the freed column whose slowest new pair is fastest (a minimax form of Dijkstra's search for
the shortest augmenting path). Where no path is faster than what was dissolved, no matching is: any matching that is
holds such a path. A search that changes one device of a group therefore repairs the old matching in few steps instead
of finding a new one.
"""

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


@compiled
def settle(
    cost: Matrix,
    other: Matrix,
    cap: float,
    rows: Index,
    columns: Index,
    mate: Index,
    room: Index,
    slack: Matrix,
    stop: float,
) -> float:
    """Improve `mate` to the perfect matching whose largest cost is smallest, over pairs whose `other` is within `cap`.

    Args:
        cost: seconds, shape (N, N); a pair is `cost[rows[i], columns[j]]`.
        other: seconds, shape (N, N).
        rows: rows of `cost` to be matched, shape (n,).
        columns: columns of `cost` to be matched, shape (n,).
        mate: the column of each row, a permutation of 0..n-1; changed in place.
        room: work space, shape (3, n).
        slack: work space, shape (n,).
        stop: seconds; once the answer is sure to be more than this, any value that is more than this may be returned.

    Returns:
        The largest cost in the matching, infinite where pairs within the cap do not make a perfect one.
    """
    count = len(rows)
    row_of, via, visited = room[0], room[1], room[2]
    for row in range(count):
        row_of[mate[row]] = row
    while True:
        largest, rest, worst = -np.inf, -np.inf, 0
        for row in range(count):
            here, there = rows[row], columns[mate[row]]
            value = cost[here, there] if other[here, there] <= cap else np.inf
            if value > largest:
                rest, largest, worst = largest, value, row
            elif value > rest:
                rest = value
        goal = mate[worst]
        for column in range(count):
            slack[column] = np.inf
            visited[column] = 0
        level, row = -np.inf, worst
        while True:
            here = rows[row]
            nearest, nearest_slack = -1, np.inf
            for column in range(count):
                if visited[column] == 0:
                    there = columns[column]
                    value = cost[here, there]
                    if value < slack[column] and other[here, there] <= cap:
                        slack[column] = value
                        via[column] = row
                    if slack[column] < nearest_slack:
                        nearest, nearest_slack = column, slack[column]
            level = max(level, nearest_slack)
            if level >= largest:
                return largest
            if level > stop:
                return level
            if slack[goal] < largest and slack[goal] <= max(level, rest):
                break
            visited[nearest] = 1
            row = row_of[nearest]
        # A path no slower than any search had to admit is the best one; a path no slower than the rest will do, but
        # proves nothing.
        proven = slack[goal] <= level and level >= rest
        column = goal
        while True:
            row = via[column]
            freed = mate[row]
            mate[row], row_of[column] = column, row
            if row == worst:
                break
            column = freed
        if proven:
            return level


@compiled
def match_both_ways(
    forward: Matrix,
    backward: Matrix,
    symmetric: bool,
    rows: Index,
    columns: Index,
    mate: Index,
    room: Index,
    slack: Matrix,
    stop: float,
) -> float:
    """Improve `mate` to the matching that minimises the slowest forward plus the slowest backward pair.

    Walks along the trade-off of the two: each step allows the forward half just enough to make the backward half
    faster than any seen before, until even the fastest backward half could not make up for the forward one.

    Args:
        forward: seconds, shape (N, N); `forward[rows[i], columns[j]]` sends from row i to column j.
        backward: seconds, shape (N, N); `backward[rows[i], columns[j]]` returns from column j to row i.
        symmetric: whether both are the same.
        room: work space, shape (5, n); for the rest, see `settle`.

    Returns:
        The sum in seconds; or, where that is more than `stop`, any value that is.
    """
    if symmetric:
        return 2 * settle(forward, forward, np.inf, rows, columns, mate, room, slack, stop / 2)
    # Each row pays for one of its pairs: a bound, cheap beside a matching, that most trials do not pass.
    fastest_backward = 0.0
    for row in range(len(rows)):
        here, both, back = rows[row], np.inf, np.inf
        for column in range(len(columns)):
            there = columns[column]
            both = min(both, forward[here, there] + backward[here, there])
            back = min(back, backward[here, there])
        if both > stop:
            return both
        fastest_backward = max(fastest_backward, back)
    slowest_forward = settle(forward, backward, np.inf, rows, columns, mate, room, slack, stop - fastest_backward)
    if slowest_forward + fastest_backward > stop:
        return slowest_forward + fastest_backward
    trial, found = room[3], room[4]
    trial[:] = mate
    fastest_backward = settle(backward, forward, np.inf, rows, columns, trial, room, slack, stop - slowest_forward)
    best = np.inf
    # Nothing in between is worth more than either the best so far or the limit.
    while slowest_forward + fastest_backward < best and slowest_forward + fastest_backward <= stop:
        slowest_backward = settle(backward, forward, slowest_forward, rows, columns, mate, room, slack, np.inf)
        if slowest_forward + slowest_backward < best:
            best = slowest_forward + slowest_backward
            found[:] = mate
        if slowest_backward <= fastest_backward:
            break
        below = np.nextafter(slowest_backward, -np.inf)
        enough = min(best, stop) - fastest_backward
        slowest_forward = settle(forward, backward, below, rows, columns, mate, room, slack, enough)
    if best < np.inf:
        mate[:] = found
        return best
    return slowest_forward + fastest_backward
