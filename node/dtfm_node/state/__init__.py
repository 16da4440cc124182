"""States of the model that this node holds: written to disk, given to others, and restored.

- `ahead_copy`: copy of parameters of the state in training that this node is to take over, as of the newest step, which
  serves where it has the hash of what a plan's sources have
- `ahead_giving`: giving of the state in training ahead of the plan that needs it: which parameters and gradients go
  when (pure), and the sending
- `asked_sources`: sources of a state, all asked at once what they have of it
- `base_weights`: weights that a stage begins with, and those of it that are never trained: from this node's memory,
  else drawn from the job's seed, or read from pieces, which are fetched from whoever has them
- `catalogue_proof`: proof of catalogues: which sources of a state offer what its replicas have signed, and which lie
- `checkpoint_upload`: upload of this node's share of each checkpoint, repeated until the checkpoint is whole at the
  coordinator
- `checkpointer`: keeps states beside training, as a snapshot on this node's disk, a copy of it where the plan says, and
  a share of the coordinator's checkpoint
- `disk_budget`: the budget of disk: how much a node keeps for the swarm, in all, and what is refused above it
- `fetch`: fetch of a state from all peers that hold it at once, piece by piece; nothing is believed but hashes that
  are certified, or that they agree on
- `held_states`: states of the model that a node keeps in memory from one plan to the next: which stays, and until when
- `inventory`: inventory of the states of the model that this node holds, and gives to others: what it trains on, what
  it trained on before as long as others may lack it, and snapshots
- `piece_requests`: requests for the pieces of a fetch: which are due, from whom; and who has given false bytes
- `restore`: restoring of a stage to the state that its plan begins with: from this node's memory and disk, else from
  others
- `shadow_replication`: copies of snapshots, given to the peers that the plan names to keep them (shadows), and taken
  from others
- `shadowed_base`: weights that are never trained of the stages of which this node keeps copies, or that it is to serve
  soon, fetched while training goes on
- `snapshot_writer`: writer of states to this node's disk beside training: one at a time, on a thread of its own
- `snapshots`: states of stages on this node's disk, its own and those that it keeps for others
- `source_pace`: pace of one source of a fetch: what it owes, what it has given, and how fast
- `state_reading`: reading of a state while training goes on: tensor by tensor, and no update comes in between
"""
