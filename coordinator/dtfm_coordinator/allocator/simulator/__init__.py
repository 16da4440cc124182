"""The simulated training step: exactly, event by event, and fast, on arrays as machine code.

- `compiled_schedule`: order of compute as the runtime has it (`dtfm_protocol.plan.schedule.orders`), over slots, as
  machine code
- `fair_share`: max-min fair rates of transfers that share capacities, kept up to date as transfers come and go
- `fast_all_reduce`: the fast form of all-reduces of one bucket, in closed form, as machine code: of a stage, and of
  what both ends share
- `fast_buckets`: reductions of a layout bucket by bucket, as machine code: `problem.bucket_cut` on arrays
- `fast_reduction`: the fast form of reductions in buckets and along trees, event by event, as machine code
- `fast_simulator`: the fast form of the simulated training step: `simulator` on arrays, as machine code, for the search
- `heap`: binary heap of numbered events in two arrays, for compiled loops: the earliest first, of those the lowest
  number
- `peer_time`: time of each peer in a simulated step: what it computes, and what it waits for
- `predicted_seconds`: what one training step is predicted to take, in parts that add up
- `simulated_network`: messages on a network over time: each ordered link carries its own one after another, and links
  share capacities
- `simulated_reduction`: one reduction of a simulated step, bucket by bucket, as the engine runs it
- `simulated_timeline`: what happens in a simulated training step, and when: for charts, and to say where the time goes
- `simulator`: one training step played out exactly, event by event: compute, messages, all-reduce, commit, optimizer
- `slot_course`: course of a step over slots: routes, the order of compute and its pace, and which stages must recompute
- `slot_memory`: memory of peers, for the search: how many layers fit by `dtfm_protocol.model.memory_model.stage_bytes`
- `slot_pace`: pace of a step over slots, of which orders of compute are made: what actions and messages take on these
  peers
- `slot_routes`: from the peers of each stage to a route for every micro-batch, over *slots*: places in stages, numbered
  in order
"""
