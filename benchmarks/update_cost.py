"""What the update costs beside torch's own: the same AdamW, of which one has the same bits on every device.

`python -m benchmarks.update_cost --out FILE` keeps the table. One process takes the updates in turn, on the same sizes;
the median counts. Seconds are the processor's where one thread of it works, so that the load of others counts little,
else the clock's. torch's clip is a pass over the gradients before its update, as a training script has it; this
project's is one of the update's factors. A layer is a llama's: seven matrices of 12 x hidden^2 values in all, and two
vectors. A second table has this project's other ways beside AdamW in fp32: other optimizers, and states in less.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_node.engine.device import choose, synchronise
from dtfm_node.engine.elementwise_update import UpdateSettings
from dtfm_node.engine.optimizers import OPTIMIZERS
from dtfm_protocol.checkpoint.shard import torch_dtype
from dtfm_protocol.checkpoint.state_slots import WEIGHT, state_table
from dtfm_protocol.job.job_file import OptimizerName, WeightsName
from dtfm_protocol.process import command_line

LAYERS = ((64, 2), (256, 4), (768, 4), (2048, 1))
"""Hidden size and number of layers."""
QUICK_LAYERS = LAYERS[:2]
ROUNDS_VALUES = 400_000_000
"""Values that each contender updates in all, at each size."""
ROUNDS = (10, 300)
"""Updates of each contender, at least and at most."""
RATE, DECAY = 1e-3, 0.1
SETTINGS = UpdateSettings(DECAY)
CLIP = 1 - 1e-6
"""Gradients are clipped again at every update, and must not fade."""

Parameters = dict[str, nn.Parameter]
Update = Callable[[int], Any]


def parameters(hidden: int, layers: int, device: torch.device) -> Parameters:
    """The layers' weights, and gradients that are small beside them."""
    shapes = [(hidden, hidden)] * 4 + [(8 * hidden // 3, hidden)] * 3 + [(hidden,)] * 2
    found = {}
    for layer in range(layers):
        for number, shape in enumerate(shapes):
            parameter = nn.Parameter(torch.randn(shape, device=device) * 0.02)
            parameter.grad = torch.randn(shape, device=device) * 1e-3
            found[f"{layer}.{number}"] = parameter
    return found


def torchs(ours: Parameters, **kind: bool) -> Update:
    """torch's AdamW over `ours`, after the clip."""
    groups = [
        {"params": [one for one in ours.values() if one.ndim > 1], "weight_decay": DECAY},
        {"params": [one for one in ours.values() if one.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=SETTINGS.betas, eps=SETTINGS.eps, **kind)
    gradients = [one.grad for one in ours.values() if one.grad is not None]

    def update(step: int) -> None:
        torch._foreach_mul_(gradients, CLIP)
        optimizer.step()

    return update


def kept(hidden: int, layers: int, device: torch.device, name: OptimizerName, weights: WeightsName) -> Update:
    """This project's update by an optimizer, of weights that are kept in `weights`."""
    ours = parameters(hidden, layers, device)
    for parameter in ours.values():
        gradient, parameter.grad = parameter.grad, None
        parameter.data = parameter.data.to(torch_dtype(state_table(name, weights).of_key(f"{WEIGHT}/").dtype))
        parameter.grad_dtype = torch.float32
        parameter.grad = gradient
    optimizer = OPTIMIZERS[name](ours, SETTINGS, state_table(name, weights))
    return lambda step: optimizer.update(step, RATE, CLIP)


def contenders(hidden: int, layers: int, device: torch.device) -> dict[str, Update]:
    """The updates by name, each with weights of its own."""
    own = {name: kept(hidden, layers, device, *way) for name, way in OTHERS.items()}
    return {
        "this project's": kept(hidden, layers, device, "adamw", "fp32"),
        "torch, fused": torchs(parameters(hidden, layers, device), fused=True),
        "torch, foreach": torchs(parameters(hidden, layers, device), foreach=True),
        **own,
    }


def measure(hidden: int, layers: int, device: torch.device) -> tuple[int, dict[str, float]]:
    """The number of values, and the median seconds of each contender's update."""
    values = sum(one.numel() for one in parameters(hidden, layers, device).values())
    updates = contenders(hidden, layers, device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    now = time.thread_time if alone else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for step in range(1, 2 + min(max(ROUNDS_VALUES // values, ROUNDS[0]), ROUNDS[1])):
        for name, update in updates.items():
            synchronise(device)
            begun = now()
            update(step)
            synchronise(device)
            seconds[name].append(now() - begun)
    return values, {name: statistics.median(taken[1:]) for name, taken in seconds.items()}


OTHERS: dict[str, tuple[OptimizerName, WeightsName]] = {
    "sgd": ("sgd", "fp32"),
    "adamw-8bit": ("adamw-8bit", "fp32"),
    "adamw, weights bf16": ("adamw", "bf16"),
    "adamw-8bit, weights bf16": ("adamw-8bit", "bf16"),
    "sgd, weights bf16": ("sgd", "bf16"),
}
"""This project's other ways, by what the job file says."""
HEADINGS = ("layers", "values", "this project's", "torch, fused", "torch, foreach", "of fused's", "ns a value")


def row(hidden: int, layers: int, values: int, seconds: dict[str, float]) -> tuple[str, ...]:
    """One size as a row under `HEADINGS`."""
    own = seconds["this project's"]
    return (
        f"{layers} of hidden {hidden}",
        f"{values / 1e6:.2f} M",
        *(f"{1e3 * seconds[name]:.2f} ms" for name in HEADINGS[2:5]),
        f"{own / seconds['torch, fused']:.2f}",
        f"{1e9 * own / values:.2f}",
    )


def other_row(hidden: int, layers: int, values: int, seconds: dict[str, float]) -> tuple[str, ...]:
    """One size as a row of the second table: nanoseconds a value."""
    ways = ("this project's", *OTHERS)
    return (f"{layers} of hidden {hidden}", *(f"{1e9 * seconds[name] / values:.2f}" for name in ways))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on a CPU")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N")
    parser.add_argument("--quick", action="store_true", help="the small sizes alone, to try it out")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded():
        device = choose(options.device)
        torch.set_num_threads(options.threads)
        sizes = QUICK_LAYERS if options.quick else LAYERS
        measured = [
            (*size, *measure(*size, device))
            for size in track(sizes, description="updating", console=console, transient=True)
        ]
        lines, others = [row(*one) for one in measured], [other_row(*one) for one in measured]
        title = f"A clipped update on {device}, {options.threads} threads"
        other_title, other_headings = "This project's ways, in ns a value", ("layers", "adamw", *OTHERS)
        show(title, HEADINGS, lines)
        show(other_title, other_headings, others)
        command = f"python -m benchmarks.update_cost --device {options.device} --threads {options.threads}"
        tables = [markdown(title, HEADINGS, lines), markdown(other_title, other_headings, others)]
        keep(options.out, "The update's cost", command, [f"Machine: {facts}.\n", *tables])


if __name__ == "__main__":
    main()
