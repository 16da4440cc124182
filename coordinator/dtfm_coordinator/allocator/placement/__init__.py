"""Foundations that every search for a placement stands on.

- `compiled`: the inner loops of the search as machine code: one decorator over numba's
- `links`: the links between peers as the cost models use them: seconds and bytes a second
- `neighbourhoods`: neighbourhoods of devices: who is near whom, and grids of stages and replicas tiled with near ones
- `search_budget`: how long a search may go on
- `shapes`: which numbers of stages and replicas an owner's choices allow on a swarm
"""
