"""The allocator: pure functions from a view of the swarm to a plan.

- `paper/`: placements by the paper's communication cost (arXiv 2206.01288, section 3), and the search that it judges
- `placement/`: foundations that every search for a placement stands on
- `step/`: layouts by the simulated training step, and the search over whole layouts
- `allocate`: allocator that `serve` asks: from a view of the swarm to the plan with the shortest simulated step
- `job_demand`: demand of a job on its peers: its model's sizes, for the allocator
- `plan_in_force`: plan in force, as a new one sees it: who holds what, and what going over to another layout takes
- `workload`: workload for which a plan is made, and what a step of one would take on a view
"""
