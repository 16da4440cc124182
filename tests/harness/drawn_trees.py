"""Trees of reductions as tests draw them."""

import random


def drawn_tree(owner: int, count: int, rng: random.Random) -> tuple[int, ...]:
    """A tree of so many holders, any one of all there are."""
    parents = [owner] * count
    there = [owner]
    for place in rng.sample([place for place in range(count) if place != owner], count - 1):
        parents[place] = rng.choice(there)
        there.append(place)
    return tuple(parents)


def drawn_trees(count: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """One for the part of each holder; about a quarter of the parts go directly, which an empty one says."""
    rng = random.Random(seed)
    return tuple(() if rng.random() < 0.25 else drawn_tree(owner, count, rng) for owner in range(count))
