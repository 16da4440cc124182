"""The training engine of one peer: everything between a plan and a committed step.

- `adamw`: AdamW, with the bits that are the same on every device
- `allreduce`: the sharded all-reduce of one bucket: sums go to each part's owner, straight or along trees, totals back
- `arbiter_audit`: audit of the arbiter by the peers that it answers: a commit follows from the votes on its step
- `balloting`: sending of votes and commits, and the waiting for them, around what an `Arbiter` decides
- `bf16_weights`: a model whose weights are kept in bf16: computed with in fp32, with gradients in fp32
- `buckets`: runs of gradient that are reduced together, by whom, and who owns which part of the sum
- `compiled_adamw`: AdamW's update on a processor, compiled: one pass over memory in place of one for each operation
- `compiled_loop`: loops over values that are compiled for a processor, and kept on the disk as machine code
- `compiled_norms`: sums of squares and of products on a processor, compiled: one pass over memory for all that is asked
- `device`: which device computes, and how much memory it has
- `device_profile`: what a node says of its machine: how fast it is at the job's own layer, how much memory it offers,
  and what fits
- `device_speed`: how fast a device is: matrix products in each precision, and the job's own decoder layer, forward and
  backward
- `drifted_pace`: rule by which an arbiter finds that durations have drifted from those of which orders were made (pure)
- `dynamic_quantisation`: moments in 8 bits by block-wise dynamic quantisation, with the same bits on every device
- `elementwise_update`: updates of parameters as elementwise IEEE arithmetic in a stated order: the same bits on every
  device
- `emulated_speed`: compute at a stated speed: actions take as long as on a device that is slower than this one
- `exchange`: frames to and from the other peers of one plan: `receiver` takes in what `mailbox` lets in, `sender`
  sends, and `heartbeat` tells who lives
- `expected_frames`: frames that a step brings to a peer, and their sizes (pure)
- `failure_detector`: decides from measured times when a peer that is silent, or busy with one thing, counts as gone
  (pure)
- `final_groups`: which groups of a stage's gradients are final: known while the last micro-batch's backward still runs
- `fitting_layers`: the layers of a job that fit into a device's memory, and how long they take there
- `flat_gradients`: the gradients of a stage in flat buffers: what buckets are runs of
- `frame_seals`: seals on reduced parts: their owner's signature over which part it is, the hash of its bytes, and its
  squares
- `frozen_forms`: modules of a stage whose matrices are not trained and are kept in less than fp32
- `freed_memory`: freed memory that the C library holds: given back to the system where the process grows
- `gradient_norm`: norm of gradients and their clip, which swarm and `solo` share
- `heartbeat`: pulses to and from the other peers of a plan, which say that a peer lives, and how long it has been at
  its action
- `host_states`: tensors that lie in the machine's memory beside a GPU, and come to it run by run while it updates them
- `host_copies`: copies between the device's memory and the bytes that are sent: on CUDA over pinned memory, on streams
  beside compute's
- `job_survey`: a survey of a job: what its model would take, worked out in a process of bounded memory and time
- `kept_forms`: forms in which training keeps a parameter's tensors: an update takes them as fp32, and gives them back
- `layers`: ways to run a stage's decoder layers: plainly, with activations recomputed, or compiled
- `link_rates`: rates at which frames come in from each peer: what training traffic tells of links, for nothing (pure)
- `lone_stage_alarm`: alarm for norms that lone stages vote: only what is usual can contradict (pure)
- `mailbox`: frames that one peer awaits from the others under one plan: which are due, which have come, and who is gone
  (pure)
- `micro_batches`: micro-batches as a stage takes them from the corpus's files: tokens, their positions, and which
  of them count
- `optimizers`: optimizers by the names that a job has for them
- `orders_in_force`: orders of compute by which peers run a step, and the pace of which they were made (pure)
- `part_alarm`: alarm for parts of a gradient that are well-formed and wrong: norms and directions that no honest
  replica's have (pure)
- `process_limits`: limits of this node's own process, set before it hears of any job
- `receiver`: receiver of frames from streams: the waiting, on both sides, around what a `Mailbox` decides
- `reduction_receipts`: receipts of a step's reduced parts: what each holder got, and who lies where they differ (pure)
- `rejected_frames`: frames that cannot be used: kinds of fault, how often each was, and whether one is worth a line in
  the log (pure)
- `runtime`: runtime of the engine: the device, the threads that use it, the way to and from its memory, and the tracer
- `schedule_executor`: executor of a schedule: compute on its own thread, receives posted ahead, sends off that thread
- `send_rates`: rates at which frames leave for each peer, while they do: a link that fails is noticed before its frame
  is through (pure)
- `sender`: sender of frames to other peers: a queue for each peer and priority, each sent in order over a stream of its
  own
- `sgd`: SGD with momentum, with the bits that are the same on every device
- `signed_ballots`: votes and commits as frames carry them: a signature, then the message as JSON
- `state_tensors`: tensors of a state, weights and moments, by the names that checkpoints give them
- `step_arbiter`: what makes a step final: every peer votes that it holds its share, the arbiter answers with one commit
- `step_evidence`: evidence of the newest steps: what a peer keeps to prove who said what, and gives to others
- `step_messages`: messages of a step: every one that a plan makes a peer send or await (pure)
- `stochastic_rounding`: weights that are kept in bf16, rounded up or down at random by a hash, with the same bits on
  every device
- `tracer`: tracer of what this node did and when, in a file for `dtfm-coordinator trace` and for Perfetto
- `trainer`: trainer of one plan: runs its steps from its first state, step by step, to the job's last step or the
  plan's end
- `training_stage`: a peer's slice of the model, with all that training needs of it: gradients, optimizer, state by
  parameter name
- `weight_gradients`: weight gradients of matrices, added straight to their sums: at once, or later as an action of
  their own
"""
