"""What a layout is judged by: the model's demand, peers and links as arrays, and what moving to it costs.

- `bucket_cut`: buckets of a reduction as both simulators play them: how large, how many at a time, when each is final
- `model_demand`: what a model asks of the peers that serve its stages: parameters, memory, messages, gradients
- `moving_cost`: what it takes to go from the plan in force to another: bytes of state over measured links
- `problem_arrays`: what a placement is judged by, as plain arrays for the compiled cost: peers, links, model and job
- `stage_needs`: what a stage needs by the depth of the pipeline: memory as plans are judged by it, and bytes on the
  wire (pure)
"""
