"""Bottleneck matching: pairs two groups of devices one to one so that the slowest pair is as fast as possible.

A perfect matching is improved from above: its slowest pair is dissolved, and the row so freed looks for the path of
alternating pairs back to the freed column whose slowest new pair is fastest (a minimax form of Dijkstra's search for
the shortest augmenting path). Where no path is faster than what was dissolved, no matching is: any matching that is
holds such a path. A search that changes one device of a group therefore repairs the old matching in few steps instead
of finding a new one.
"""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dtfm_coordinator.allocator.foundations.compiled import compiled_in_place, compiled_in_place_inside
from dtfm_coordinator.allocator.foundations.copies import copy_into

Matrix = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


class MatchingRoom(NamedTuple):
    """Work space of matchings of n rows with n columns."""

    places: Index
    """Shape (4, n)."""
    seconds: Matrix
    """Shape (2, n)."""
    pairs: Matrix
    """Shape (n, n)."""

    @classmethod
    def of_size(cls, count: int) -> Self:
        """Return that of `count` rows."""
        return cls(np.zeros((4, count), dtype=np.int64), np.zeros((2, count)), np.zeros((count, count)))


@compiled_in_place
def settle(
    cost: Matrix,
    other: Matrix,
    cap: float,
    mate: Index,
    room: MatchingRoom,
    stop: float,
) -> float:
    """Improve `mate` to the perfect matching whose largest cost is smallest, over pairs whose `other` is within `cap`.

    Args:
        cost: seconds, shape (n, n).
        other: seconds, shape (n, n).
        mate: the column of each row, a permutation of 0..n-1; changed in place.
        stop: seconds; once the answer is sure to be more than this, any value that is more than this may be returned.

    Returns:
        The largest cost in the matching, infinite where pairs within the cap do not make a perfect one.
    """
    count = len(cost)
    row_of, via, visited = room.places[0], room.places[1], room.places[2]
    slack = room.seconds[0]
    for row in range(count):
        row_of[mate[row]] = row
    while True:
        largest, rest, worst = -np.inf, -np.inf, 0
        for row in range(count):
            column = mate[row]
            value = cost[row, column] if other[row, column] <= cap else np.inf
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
            nearest, nearest_slack = -1, np.inf
            for column in range(count):
                if visited[column] == 0:
                    value = cost[row, column]
                    if value < slack[column] and other[row, column] <= cap:
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


@compiled_in_place
def match_both_ways(pairs: Matrix, symmetric: bool, mate: Index, room: MatchingRoom, stop: float) -> float:
    """Improve `mate` to the matching that minimises the slowest forward plus the slowest backward pair.

    Walks along the trade-off of the two: each step allows the forward half just enough to make the backward half
    faster than any seen before, and than what could still be of use, until even the fastest backward half could not
    make up for the forward one.

    Args:
        pairs: seconds from each row to each column, and from each column back to each row, shape (2, n, n).
        symmetric: whether both are the same; the second is then not read.
        mate: the column of each row, a permutation of 0..n-1; changed in place.
        stop: seconds; see `settle`.

    Returns:
        The sum in seconds; or, where that is more than `stop`, any value that is.
    """
    forward, backward = pairs[0], pairs[1]
    if symmetric:
        return 2 * settle(forward, forward, np.inf, mate, room, stop / 2)
    fastest_backward = slowest_line(backward, room)
    found, best, most = room.places[3], np.inf, stop - fastest_backward
    slowest_forward = settle(forward, backward, np.inf, mate, room, most)
    # Nothing in between is worth more than either the best so far or the limit. `settle` is asked for what it was given
    # as its own limit: a sum may round to the other side of it.
    while slowest_forward <= most and slowest_forward < np.inf:
        enough = min(best, stop) - slowest_forward
        slowest_backward = settle(backward, forward, slowest_forward, mate, room, enough)
        if slowest_backward <= enough:
            if slowest_forward + slowest_backward < best:
                best = slowest_forward + slowest_backward
                copy_into(found, mate)
            if slowest_backward <= fastest_backward:
                break
        below = np.nextafter(min(enough, slowest_backward), -np.inf)
        most = min(best, stop) - fastest_backward
        slowest_forward = settle(forward, backward, below, mate, room, most)
    if best < np.inf:
        copy_into(mate, found)
    return best


@compiled_in_place_inside
def slowest_line(cost: Matrix, room: MatchingRoom) -> float:
    """Return what the slowest pair of any matching costs at least, seconds: each row and each column has one pair."""
    count, least_of_column, slowest = len(cost), room.seconds[1], 0.0
    for column in range(count):
        least_of_column[column] = np.inf
    for row in range(count):
        least = np.inf
        for column in range(count):
            least = min(least, cost[row, column])
            least_of_column[column] = min(least_of_column[column], cost[row, column])
        slowest = max(slowest, least)
    for column in range(count):
        slowest = max(slowest, least_of_column[column])
    return slowest


@compiled_in_place
def least_both_ways(pairs: Matrix, symmetric: bool, room: MatchingRoom, stop: float) -> float:
    """Return what `match_both_ways` returns at least, seconds: cheap beside a matching, and seldom much less.

    The slowest pair each way costs what it does in `slowest_line`. So each row and each column has a pair that costs
    both ways as much as these two or as it does itself, whichever is more, way by way.

    Args:
        stop: seconds; once the bound is sure to be more than this, any bound that is more may be returned.
    """
    forward, backward = pairs[0], pairs[1]
    slowest_forward = slowest_line(forward, room)
    if symmetric:
        return 2 * slowest_forward
    slowest_backward = slowest_line(backward, room)
    if slowest_forward + slowest_backward > stop:
        return slowest_forward + slowest_backward
    both = room.pairs
    for row in range(len(both)):
        for column in range(len(both)):
            ahead, back = forward[row, column], backward[row, column]
            both[row, column] = max(ahead, slowest_forward) + max(back, slowest_backward)
    return slowest_line(both, room)
