"""Placements by the paper's communication cost (arXiv 2206.01288, section 3), and the search that it judges.

- `annealing_window`: temperatures between which annealing pays: above, nearly everything melts, and below, hardly a
  change is made
- `baselines`: placements without a search, to compare with
- `cooling`: simulated annealing on the exact cost, one temperature at a time
- `crossover`: crossover of two placements, and the widths of the tilings with which the evolutionary search starts
- `evolutionary_search`: evolutionary search for a balanced placement that is cheapest by the paper's cost
- `exhaustive`: looks at every placement of a small swarm, for the one that is provably best
- `hamiltonian_path`: cheapest open Hamiltonian path: the order in which groups of devices become pipeline stages
- `matching`: bottleneck matching: pairs two groups of devices one to one so that the slowest pair is as fast as
  possible
- `nearest_partners`: nearest partner of each device in each stage, so that what a boundary costs at least is known in
  one look a device
- `paper_cost`: communication cost of a placement by the paper (arXiv 2206.01288, section 3), extended to asymmetric
  links
- `paper_plan`: plan by the paper's communication cost alone: what `dtfm-coordinator plan --cost paper` writes
- `placement_state`: a placement with everything that its cost is made of, so that a change costs only what it
  touches
- `swaps`: changes of a placement, made only where its cost afterwards, exact or smooth, is within a limit
"""
