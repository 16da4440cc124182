"""`DistributedDataParallel` over gloo: one process, one replica of the whole model and one thread each."""

import contextlib
import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.baselines.work import Rank, RowWriter, Work, gradients_of, meet, sum_of_squares
from dtfm_protocol.model.initial_weights import initialise
from dtfm_protocol.model.stage import build_stage, loss_sum


def train(rank: Rank, steps: int) -> None:
    """Train `steps` steps; micro-batches go round the replicas, gradients are reduced with the last one's backward."""
    work = Work(rank)
    config, training = work.job.config, work.training
    module = build_stage(config, 0, config["num_hidden_layers"], torch.device("cpu"))
    parameters = module.named_state()
    initialise(parameters, config, training.seed)
    optimizer = work.optimizer(parameters)

    meet(rank)
    model = DistributedDataParallel(module, gradient_as_bucket_view=True, broadcast_buffers=False)
    mine = range(rank.number, training.micro_batches, rank.count)
    rows = RowWriter(rank)
    for step in range(1, steps + 1):
        total = torch.zeros((), dtype=torch.float64)
        for index in mine:
            inputs, targets = work.batch(step, [index])
            with contextlib.nullcontext() if index == mine[-1] else model.no_sync():
                loss = loss_sum(model(inputs), targets) / training.tokens
                (loss * rank.count).backward()  # the reduction takes the mean over replicas
            total += loss.detach()
        dist.all_reduce(total)
        gradients = gradients_of(parameters.values())
        work.update(optimizer, step, gradients, math.sqrt(sum_of_squares(gradients)))
        rows.ended(step, float(total))
    dist.destroy_process_group()
