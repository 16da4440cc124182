"""The allocator: pure functions from a view of the swarm to a plan.

- `allocate`: what `serve` asks; the layout with the shortest simulated step, what moving there takes included
- `workload`: what a plan is made for; `in_force`: the plan that a new one would replace
- `paper/`: the paper's communication cost, and the search that it alone judges
- `step/`: the simulated training step, and the search over whole layouts
- `links`: what joins peers; `neighbourhoods`: who is near whom; `shapes`: which grids are allowed
- `budget`: how long a search may go on; `compiled`: its inner loops as machine code
"""
