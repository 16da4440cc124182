"""The allocator: pure functions from a view of the swarm to a plan.

- `allocate`: what `serve` asks; the layout with the shortest simulated step
- `paper_plan`: a plan by the paper's communication cost alone
- `paper_cost`: that cost (arXiv 2206.01288, section 3), of pipelines as written and of partitions at their best
- `matching`: pairing two groups of devices; `path`: ordering groups into stages
- `search`: the evolutionary search; `seeds`: its first placements and crossings; `swaps`: its inner loop;
  `budget`: how long it may go on
- `baselines`: random and in-order placements
- `demand`: what a model asks of the peers; `shapes`: which numbers of stages and replicas are feasible
- `layout`: from a placement to a plan; `routes`: its micro-batches
- `makespan`: the simulated training step; `trial`: trying layouts and changing them for the better
"""
