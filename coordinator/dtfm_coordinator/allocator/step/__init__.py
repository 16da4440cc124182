"""Layouts by the simulated training step.

- `demand`: what a model asks of peers; `promising`: which grids are worth a search
- `simulator`: the exact step, event by event; `network`, `fair_share`: its transfers; `timeline`: what came when
- `cost`: a step's parts; `bound`: what no layout undercuts
- `memory`: what fits, and who recomputes for it
- `makespan`: the fast form of the step, on the arrays of a `problem`; `heap`: its queue
- `routes`, `orders`: routes and the runtime's order of compute, over slots; `layout`: who stands in which slot
- `evolution`: the search; `starts`: what it begins with; `anneal`: its local search; `moving`: what going over takes
"""
