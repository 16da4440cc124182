"""The search over whole layouts, judged by the simulated step.

- `annealing`: the local search over layouts: simulated annealing on the fast form of the simulated step, as machine
  code
- `foretelling`: foretelling of steps: a long one's seconds from two short ones, of many placements
- `grown_chains`: chains of one peer a stage, grown peer by peer: the best few of many
- `hill_climbing`: single changes for as long as any makes a layout better: at the end, and of the one in force first
- `layout`: which peer stands in which slot, and how micro-batches and layers are shared out; its cost and its plan
- `layout_evolution`: the evolutionary search over whole layouts: depth, peers of each stage, who stands where, shares,
  layers, idle peers
- `layout_population`: population of a search over layouts: the best layout of each row of peer counts
- `layout_variation`: new stages out of known ones: mutation and crossover of the evolutionary search over layouts
- `neighbours`: all that a single change makes of a layout, and how long their steps are
- `promising_shapes`: which numbers of stages and replicas are worth a search, most promising first
- `sketched_step`: about how long a layout's step is, from sums alone: what of many changes is worth playing
- `starts`: placements from which the search by the simulated step starts, and placements that are made without a search
"""
