"""What every contender trains: one job file, and for a baseline its tokens, weights and optimizer."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from dtfm_node.engine.gradient_norm import clip_factor
from dtfm_protocol.data.batches import Batches
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.job.resolved_job import ResolvedJob


@dataclass(frozen=True)
class Rank:
    """One process of a baseline."""

    number: int
    count: int
    threads: int
    folder: Path
    """Of this run: the processes meet here, and rank 0 writes `metrics.jsonl`."""
    work: Path
    """What `resolve` has made."""


def meet(rank: Rank) -> None:
    """Join the process group of all ranks; they find each other by a file."""
    store = f"file://{rank.folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank.number, world_size=rank.count)


def resolve(job: Path, folder: Path) -> None:
    """Make the tokens and the model's config that `Work` reads."""
    prepare(Job.load(job), folder, lambda _: None)


class Work:
    """The job as a training script needs it."""

    def __init__(self, rank: Rank) -> None:
        torch.set_num_threads(rank.threads)
        self.job = ResolvedJob.model_validate_json((rank.work / "job.json").read_text(encoding="utf-8"))
        self.training = self.job.training
        self._batches = Batches(self.job.corpus, self.job.training, self.job.evaluation)
        self._tokens = TokenReader(self.job.corpus, ShardFolder(rank.work / "tokens"))

    def batch(self, step: int, indices: Iterable[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some micro-batches of a step, one after another: int64 `[sequences, length]` each."""
        windows = [torch.from_numpy(self._batches.micro_batch(step, index, self._tokens.read)) for index in indices]
        window = torch.cat(windows)
        return window[:, :-1].contiguous(), window[:, 1:].contiguous()

    def optimizer(self, parameters: dict[str, nn.Parameter]) -> torch.optim.AdamW:
        """The job's AdamW, fused: a third of what `foreach` takes on a CPU, or a loop."""
        matrices = [parameter for parameter in parameters.values() if parameter.ndim >= 2]
        vectors = [parameter for parameter in parameters.values() if parameter.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": self.training.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=0.0, betas=self.training.betas, eps=self.training.eps, fused=True)

    def update(self, optimizer: torch.optim.Optimizer, step: int, gradients: list[torch.Tensor], norm: float) -> None:
        """Clip the gradients by the whole model's `norm`, take the step, and forget them."""
        factor = clip_factor(norm, self.training.clip_norm)
        if factor < 1.0:
            torch._foreach_mul_(gradients, factor)
        for group in optimizer.param_groups:
            group["lr"] = self.training.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def sum_of_squares(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Of all values together, as a scalar."""
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """The gradients that backwards have left."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class RowWriter:
    """Writes a row for every step: its mean loss, and the seconds since the step before ended."""

    def __init__(self, rank: Rank) -> None:
        self._path = rank.folder / "metrics.jsonl" if rank.number == 0 else None
        self._ended = time.monotonic()

    def ended(self, step: int, loss: float) -> None:
        """Step `step` has ended just now."""
        now = time.monotonic()
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "loss": loss, "seconds": now - self._ended}) + "\n")
        self._ended = now
