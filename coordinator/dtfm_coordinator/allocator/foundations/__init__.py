"""Foundations that every search for a placement stands on.

- `compiled`: compiler of the search's inner loops to machine code: decorators over numba's
- `copies`: copies between arrays in compiled code that makes no array
- `links`: links between peers as the cost models use them: seconds and bytes a second
- `neighbourhoods`: neighbourhoods of devices: who is near whom, and grids of stages and replicas tiled with near ones
- `search_budget`: budget of a search: the time and the evaluations after which it ends
- `shapes`: shapes of a layout: which numbers of stages and replicas an owner's choices allow on a swarm
- `side_by_side`: searches side by side on this machine's cores
"""
