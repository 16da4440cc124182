"""A plain loop in one process over the whole model as `transformers` builds it."""

import math

import torch

from benchmarks.baselines.work import Rank, RowWriter, Work, gradients_of, sum_of_squares
from dtfm_protocol.model.initial_weights import initial_value
from dtfm_protocol.model.stage import loss_sum
from dtfm_protocol.model.whole_model import build_whole


def train(rank: Rank, steps: int) -> None:
    """Train `steps` steps."""
    work = Work(rank)
    config, training = work.job.config, work.training
    model = build_whole(config, training.seed).train()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(initial_value(config, training.seed, name, parameter.shape))
    optimizer = work.optimizer(parameters)
    rows = RowWriter(rank)
    for step in range(1, steps + 1):
        total = 0.0
        for index in range(training.micro_batches):
            inputs, targets = work.batch(step, [index])
            loss = loss_sum(model(input_ids=inputs, use_cache=False).logits, targets) / training.tokens
            loss.backward()
            total += float(loss.detach())
        gradients = gradients_of(parameters.values())
        work.update(optimizer, step, gradients, math.sqrt(sum_of_squares(gradients)))
        rows.ended(step, total)
