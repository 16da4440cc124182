"""One replica of `torchft`, or its lighthouse: run by `baselines.py` with the interpreter that has torchft.

    python -m benchmarks.chaos.torchft_worker lighthouse FILE
    python -m benchmarks.chaos.torchft_worker replica NUMBER LIGHTHOUSE WORK ROWS ddp|allreduce

A replica trains its half of every step's micro-batches until it is killed, and appends a row to ROWS for each attempt
at a step. While the other one is away, a step is made of that half alone, as is torchft's way. Gradients are averaged
by torchft's DistributedDataParallel, or by one call of `Manager.allreduce` after the backward.
"""

import json
import math
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from benchmarks.baselines.work import Rank, Work, gradients_of, sum_of_squares
from dtfm_node.engine.gradient_norm import clip_factor
from dtfm_protocol.model.initial_weights import initialise
from dtfm_protocol.model.stage import build_stage, loss_sum

REPLICAS = 2
TIMEOUT = timedelta(seconds=60)


def lighthouse(file: Path) -> None:
    """Serve, with what torchft's README starts it with; the heartbeat's time-out is the default of 5 s."""
    server = LighthouseServer(bind="[::]:0", min_replicas=1, quorum_tick_ms=100, join_timeout_ms=10_000)
    file.with_suffix(".new").write_text(server.address(), encoding="ascii")
    file.with_suffix(".new").replace(file)
    while True:
        time.sleep(3600)


def replica(number: int, address: str, folder: Path, path: Path, average: str) -> None:
    """Train for ever."""
    work = Work(Rank(number, REPLICAS, 1, folder, folder))
    config, training = work.job.config, work.training
    module = build_stage(config, 0, config["num_hidden_layers"], torch.device("cpu"))
    parameters = module.named_state()
    initialise(parameters, config, training.seed)
    inner = work.optimizer(parameters)

    def state() -> dict[str, Any]:
        return {"model": module.state_dict(), "optimizer": inner.state_dict()}

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT), load_state_dict=load, state_dict=state, min_replica_size=1,
        timeout=TIMEOUT, rank=0, world_size=1, store_addr="localhost", store_port=store.port,
        lighthouse_addr=address, replica_id=f"replica_{number}", hostname="localhost",
    )  # fmt: skip
    model = DistributedDataParallel(manager, module) if average == "ddp" else module
    optimizer = Optimizer(manager, inner)
    mine = range(number, training.micro_batches, REPLICAS)
    share = training.tokens * len(mine) / training.micro_batches
    with path.open("a", encoding="utf-8") as rows:
        while True:
            began, step = time.time(), manager.current_step()
            optimizer.zero_grad()
            inputs, targets = work.batch(step + 1, mine)
            (loss_sum(model(inputs), targets) / share).backward()
            gradients = gradients_of(parameters.values())
            if average != "ddp":
                flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
                manager.allreduce(flat).wait()
                parts = flat.split([gradient.numel() for gradient in gradients])
                for gradient, part in zip(gradients, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))
            factor = clip_factor(math.sqrt(sum_of_squares(gradients)), training.clip_norm)
            torch._foreach_mul_(gradients, factor)
            for group in optimizer.param_groups:
                group["lr"] = training.learning_rate_at(step + 1)
            healing, commits = not manager.is_participating(), manager.batches_committed()
            optimizer.step()
            row = {
                "began": began,
                "ended": time.time(),
                "step": manager.current_step(),
                "committed": manager.batches_committed() > commits,
                "replicas": manager.num_participants(),
                "takes_part": not healing,
            }
            rows.write(json.dumps(row) + "\n")
            rows.flush()


if __name__ == "__main__":
    if sys.argv[1] == "lighthouse":
        lighthouse(Path(sys.argv[2]))
    else:
        replica(int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5]), sys.argv[6])
