"""Bounds that no placement can undercut: by them a search's result is judged.

- `paper_bound`: a lower bound of the paper's cost that holds for any placement: what a large result is judged by
- `step_bound`: what no plan of a job can undercut by the simulated step, whatever its stages, peers, shares and layers
"""
