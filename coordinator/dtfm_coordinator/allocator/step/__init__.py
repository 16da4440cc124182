"""Layouts by the simulated training step, and the search over whole layouts.

- `annealing`: the local search over layouts: simulated annealing on the fast form of the simulated step, as machine
  code
- `compute_order`: order of compute as the runtime has it (`dtfm_protocol.plan.schedule.orders`), over slots, as machine
  code
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
- `simulated_timeline`: what happens in a simulated training step, and when: for charts, and to say where the time goes
- `simulator`: one training step played out exactly, event by event: compute, messages, all-reduce, commit, optimizer
- `slot_memory`: memory of peers, for the search: how many layers fit by
  `dtfm_protocol.model.bytes_per_parameter.stage_bytes`
- `slot_routes`: from the peers of each stage to a route for every micro-batch, over *slots*: places in stages, numbered
  in order
- `starts`: placements from which the search by the simulated step starts, and placements that are made without a search
- `step_cost`: what one training step is predicted to take, in parts that add up
"""
