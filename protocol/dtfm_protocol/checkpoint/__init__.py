"""The training state on disk and between peers: a folder a step, a safetensors file a stage, hashes of all.

- `base_pieces`: the folder of the pieces of weights that a job begins with: safetensors files named by their SHA-256
- `base_transfers`: transfers of pieces of the weights that a job begins with, over the data plane: by hash, some bytes
  at a time
- `draft`: a checkpoint that is being written: seen by nobody until all of it is on the disk
- `manifest`: the manifest of a checkpoint: its files by hash, its tensors by the parameter's name in the whole model
- `shard`: tensors as safetensors bytes, and back
- `state_slots`: slots of a parameter: the tensors that training keeps for it, as a table
- `store`: the folder of checkpoints: each is there as a whole or not at all, and a damaged one is not used
- `transfers`: bulk transfers over the data plane: token shards by hash, state by parameter name, checkpoint files to be
  kept
"""
