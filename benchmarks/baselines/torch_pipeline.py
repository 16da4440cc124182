"""`torch.distributed.pipelining` over gloo: one process, one stage and one thread each."""

import itertools
import math

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.baselines.work import Rank, RowWriter, Work, gradients_of, meet, sum_of_squares
from dtfm_protocol.model.initial_weights import initialise
from dtfm_protocol.model.stage import build_stage, loss_sum

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def train(rank: Rank, steps: int, schedule: str, bounds: tuple[int, ...]) -> None:
    """Train `steps` steps; `bounds` are the first layers of all stages, and the number of layers."""
    work = Work(rank)
    config, training = work.job.config, work.training
    first, end = list(itertools.pairwise(bounds))[rank.number]
    module = build_stage(config, first, end, torch.device("cpu"))
    parameters = module.named_state()
    initialise(parameters, config, training.seed)
    optimizer = work.optimizer(parameters)

    meet(rank)
    stage = PipelineStage(module, rank.number, rank.count, torch.device("cpu"))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return loss_sum(output, target) / training.tokens

    # The loss is divided by all tokens of the step, so the gradients' sum over micro-batches needs no scaling.
    pipeline = SCHEDULES[schedule](stage, training.micro_batches, loss_fn=loss, scale_grads=False)
    rows = RowWriter(rank)
    for step in range(1, steps + 1):
        inputs, targets = work.batch(step, range(training.micro_batches))
        losses: list[torch.Tensor] = []
        if module.is_first:
            pipeline.step(inputs, return_outputs=False)
        elif module.is_last:
            pipeline.step(target=targets, losses=losses, return_outputs=False)
        else:
            pipeline.step(return_outputs=False)
        gradients = gradients_of(parameters.values())
        mine = sum((value.detach() for value in losses), torch.zeros(()))
        shared = torch.stack([sum_of_squares(gradients), mine.double()])
        dist.all_reduce(shared)
        squares, total = shared.tolist()
        work.update(optimizer, step, gradients, math.sqrt(squares))
        rows.ended(step, total)
    dist.destroy_process_group()
