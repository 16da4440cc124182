"""The view of a swarm: what is known of its devices and links, on which plans are made.

- `link_matrix`: matrices of links, and the rows of numbers and nulls by which JSON gives them
- `matrix_completion`: the completion of a matrix of links: four ways to read a figure for every ordered pair out of
  those of a few
- `missing_links`: the estimates of links that nobody measured, and how far off they may be
- `network_coordinates`: network coordinates: a place for every peer, fitted to the delays that were measured, from
  which the others follow
- `spread`: the spread of estimates: how far off most of them are, by the misses of those that were checked
- `view`: the view of a swarm's devices and links, on which the allocator plans
"""
