"""The view of a swarm: what is known of its devices and links, on which plans are made.

- `link_matrix`: matrices of links, and the rows of numbers and nulls by which JSON gives them
- `matrix_completion`: three ways to read a figure for every ordered pair out of those of a few
- `missing_links`: what stands in for links that nobody measured
- `view`: what is known of a swarm's devices and links
"""
