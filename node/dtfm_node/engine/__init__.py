"""The training engine of one peer: everything between a plan and a committed step.

- `allreduce`: the sharded all-reduce of one bucket: every holder sums one part and gives all others the same bytes
- `balloting`: votes and commits on their way: the sending and waiting around what an `Arbiter` decides
- `buckets`: runs of gradient that are reduced together, by whom, and who owns which part of the sum
- `commit`: what makes a step final: every peer votes that it holds its share, the arbiter answers all with one commit
- `device`: which device computes, and how much memory it has
- `device_profile`: what a node says of its machine: how fast it is at the job's own layer, how much memory it offers,
  and what fits
- `device_speed`: how fast a device is: matrix products in each precision, and the job's own decoder layer, forward and
  backward
- `emulated_speed`: compute at a stated speed: actions take as long as on a device that is slower than this one
- `engine_clock`: time as the engine's waits see it: passed in, so that tests need not wait
- `exchange`: frames to and from the other peers of one plan: `receiver` takes in what `mailbox` lets in, `sender`
  sends, and `heartbeat` tells who lives
- `executor`: runs what a schedule says: compute on its own thread, receives posted ahead, sends off that thread
- `expected_frames`: which frames a step brings to a peer, and how large they are (pure)
- `failure_detector`: how long a peer may be silent, or busy with one thing, before it counts as gone; from what was
  measured of it (pure)
- `final_groups`: which groups of a stage's gradients are final: known while the last micro-batch's backward still runs
- `flat_gradients`: the gradients of a stage in flat buffers: what buckets are runs of
- `heartbeat`: pulses to and from the other peers of a plan: that each lives, and for how long it has been at its
  present action
- `layers`: how a stage's decoder layers run: plainly, keeping their inputs alone, or compiled
- `link_rates`: how fast frames come in from each peer: what training traffic tells of links, for nothing (pure)
- `mailbox`: frames that one peer awaits from the others under one plan: which are due, which have come, and who is gone
  (pure)
- `optimizer`: the optimizer that swarm and `solo` share, the clip, and their state by name
- `receiver`: frames as they come in over streams: the waiting, on both sides, around what a `Mailbox` decides
- `refusals`: frames that cannot be used: what may be wrong with one, how often it was, and whether it is worth a line
  (pure)
- `runtime`: what the engine runs on: the device, the threads that use it, the way to and from its memory, and the
  tracer
- `sender`: frames on their way to other peers: a queue a peer and priority, each sent in order over a stream of its own
- `stage_state`: a peer's slice of the model, with all that training needs of it: gradients, optimizer, state by
  parameter name
- `staging`: between the device's memory and the bytes that are sent: on CUDA over pinned memory, on streams beside
  compute's
- `step_traffic`: who sends what to whom in a step: every message that a plan makes a peer send or await (pure)
- `tracer`: what this node did and when, kept in a file for `dtfm-coordinator trace` and for Perfetto
- `trainer`: the steps of one plan: from its first state, step by step, to the job's last step or the plan's end
- `weight_gradients`: gradients of matrices, added straight to where they are summed; at once, or later as an action of
  their own
"""
