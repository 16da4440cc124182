"""Placements by the paper's communication cost (arXiv 2206.01288, section 3).

- `plan`: what `dtfm-coordinator plan --cost paper` writes, by any of its algorithms
- `cost`: the cost of pipelines as written, and of partitions at their best; `bound`: what no placement undercuts
- `matching`: pairing two groups of devices; `path`: ordering groups into stages
- `search`: the evolutionary search; `seeds`: its first placements and crossings; `cooling`: its local search
- `partition`: a placement with its parts priced; `exchange`: one change of it, priced anew
- `exhaustive`: every placement of a small swarm; `baselines`: random, in-order and greedy placements
"""
