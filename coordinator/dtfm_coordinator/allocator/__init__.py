"""The allocator: from a view of the swarm to a plan.

- `problem/`: what a layout is judged by: the model's demand, peers and links as arrays, and what moving to it costs
- `foundations/`: foundations that every search for a placement stands on
- `paper/`: placements by the paper's communication cost (arXiv 2206.01288, section 3), and the search that it judges
- `search/`: the search over whole layouts, judged by the simulated step
- `all_reduces/`: all-reduces made for the links of who takes part: how much each sums, and along which trees
- `simulator/`: the simulated training step: exactly, event by event, and fast, on arrays as machine code
- `allocate`: allocator of `serve`, `plan`, `explain` and `compare`: from a view to the plan with the shortest simulated
  step
- `best_changes`: best single changes of a plan, of each kind: what `explain` tells, and what a search makes at its end
- `coarse_boundaries`: boundaries between stages that micro-batches cross in a coarser wire, because the links there are
  slow
- `final_choice`: final choice among the layouts that searches have found: as plans, judged by the exact simulator
- `job_demand`: what a job asks of its peers: its model's sizes, for the allocator
- `paced_plan`: plan with a pace: what its actions and messages take by a view, and how much its peers keep in flight
- `plan_in_force`: the plan in force, as a new one sees it: who holds what, and what going over to another layout takes
- `why_no_plan`: why a search has found no plan, and what the owner can do about it
- `workload`: what a plan is made for, and what a step of one would take on a view

All are functions of their arguments but for two things: `allocate` ends by the clock that it is given, and `job_demand`
and `compiled` keep on disk what takes long to work out.
"""
