"""Bounds that no placement can undercut: by them a search's result is judged.

- `paper_bound`: a lower bound of the paper's cost that holds for any placement: what a large result is judged by
- `step_bound`: a lower bound of the simulated step that holds for any plan of a job, whatever its stages, peers,
  shares and layers
"""
