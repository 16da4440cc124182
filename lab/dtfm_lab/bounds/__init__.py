"""Bounds that no placement can undercut: by them a search's result is judged.

- `paper_bound`: a lower bound of the paper's cost that holds for any placement: what a large result is judged by
- `peer_sets`: sets of a few peers, what they can carry between each other, and what an all-reduce takes
- `set_stages`: each stage that there can be, and what it asks of each peer of a few
- `set_paths`: the shortest paths over sets of peers, as machine code, and the times of stages on them
- `set_bound`: a lower bound of the simulated step on a few peers that knows which of them have which links
- `least_ways`: the least that links can take of a step: the hops of a route over so many peers, and the commit
- `stage_prices`: the least price of the peers that a stage needs, by its layers and by the time that it has
- `shape_bound`: what so many stages on so many peers take of a step at least
- `step_bound`: a lower bound of the simulated step that holds for any plan of a job, whatever its stages, peers,
  shares and layers
"""
