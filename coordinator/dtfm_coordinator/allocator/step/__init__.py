"""Layouts by the simulated training step, and the search over whole layouts.

- `annealing`: local search over layouts: simulated annealing on the fast form of the simulated step, as machine code
- `compute_order`: order of compute as the runtime has it, for the search: `protocol.schedule.orders` over slots, as
  machine code
- `fair_share`: max-min fair rates of transfers that share capacities, kept up to date as transfers come and go
- `heap`: binary heap of numbers in two arrays, for compiled loops: the smallest key first
- `layout`: which peer stands in which slot, and how micro-batches and layers are shared out; its cost and its plan
- `layout_evolution`: the evolutionary search over whole layouts: depth, peers of each stage, who stands where, shares,
  layers, idle peers
- `layout_variation`: new stages out of known ones: mutation and crossover of the evolutionary search over layouts
- `makespan`: the fast form of the simulated training step: `simulator` on arrays, as machine code, for the search
- `model_demand`: what a model asks of the peers that serve its stages: parameters, memory, messages, gradients
- `moving_cost`: what it takes to go from the plan in force to another: bytes of state over measured links
- `problem`: what a placement is judged by, as plain arrays for the compiled cost: peers, links, model and job
- `promising_shapes`: which numbers of stages and replicas are worth a search, most promising first
- `simulated_network`: messages on a network over time: each ordered link carries its own one after another, and links
  share capacities
- `simulated_timeline`: timeline of a simulated training step, for charts, and to say where the time goes
- `simulator`: simulator of one training step, exactly, event by event: compute, messages, all-reduce, commit, optimizer
- `slot_memory`: memory of peers, for the search: `protocol.model.memory.stage_bytes` asked for the number of layers
- `slot_routes`: routes of micro-batches, from the peers of each stage, over *slots*: places in stages, numbered in
  order
- `starts`: placements that the search over the simulated step starts from, and those that are no search at all
- `step_cost`: cost of one training step: its predicted seconds, in parts that add up
"""
