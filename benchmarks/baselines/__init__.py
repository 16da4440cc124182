"""The same training steps in plain PyTorch: what `benchmarks/pipelines.py` sets this project beside.

`work.py`            what every contender trains: the job file, and for a baseline its tokens, weights and AdamW
`torch_pipeline.py`  `torch.distributed.pipelining` over gloo, one process a stage
`ddp.py`             `DistributedDataParallel` over gloo, one process a replica
`one_process.py`     a loop in one process

Each baseline appends a row of step, loss and seconds to a file for every step, as a swarm does to `metrics.jsonl`.
"""
