"""The training state on disk: one folder a step, one safetensors file a stage, a manifest with hashes.

- `manifest`: what a checkpoint holds, down to the bytes of each tensor.
- `shard`: tensors to safetensors bytes and back, and the digest by which replicas are compared.
- `draft`: a checkpoint that is being written, seen by nobody until all of it is on the disk.
- `store`: the folder of checkpoints, whole ones only.
"""
