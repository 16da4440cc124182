"""The view of a swarm: what is known of its devices and links, on which plans are made.

- `link_matrix`: matrices of links, and the rows of numbers and nulls by which JSON gives them
- `matrix_completion`: the completion of a matrix of links: three ways to read a figure for every ordered pair out of
  those of a few
- `missing_links`: the estimates of links that nobody measured
- `view`: the view of a swarm's devices and links, on which the allocator plans
"""
