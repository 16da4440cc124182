"""States of the model that this node holds: written to disk, given to others, and restored.

- `checkpoint_upload`: this node's share of each checkpoint, handed in to the coordinator until the checkpoint is whole
  there
- `checkpointer`: keeps states beside training: a snapshot on this node's disk, a copy of it where the plan says, and a
  share of the coordinator's checkpoint
- `fetch`: fetches a state from all who have it at once, piece by piece, and believes nothing but hashes that they agree
  on
- `inventory`: the states of the model that this node holds, and gives to others: what it trains on, what it trained on
  before as long as others may lack it, and snapshots
- `restore`: brings a stage to the state that its plan begins with: from this node's own memory and disk, else from
  others
- `shadow_replication`: copies of snapshots at shadows, the peers that a plan has keep them: given away, and taken from
  others
- `snapshot_writer`: writes a state to this node's disk beside training: one at a time, on a thread of its own
- `snapshots`: states of stages on this node's disk: its own, and those that it keeps for others
- `state_reading`: how a state is read while training goes on: tensor by tensor, and no update comes in between
"""
