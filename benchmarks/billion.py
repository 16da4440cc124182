"""A model of a billion parameters on four nodes of at most 3 GiB each: does it train, and what do they hold at most?

`python -m benchmarks.billion --out FILE` keeps the table. Real processes on this machine: a coordinator, and four nodes
that offer 3 GB each (`--memory 3`), under a plan of four stages; with adapters beside a base in fp32, and all of it
with weights in bf16 and moments in 8 bits. Peaks are the kernel's, of the node's process without its libp2p daemon
(VmHWM), read until the process ends, and of that what is in memory of its own (RssAnon): files that it has mapped are
not. "program" is a process that has loaded what a node loads, and holds no model.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.loaded import own_bytes, peak_bytes
from benchmarks.memory import base
from benchmarks.runs import Runs, forced, machine, rows, toml
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.data.tokenizer import vocabulary_size
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.job_file import Job
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.model.model_sizes import model_sizes
from dtfm_protocol.model.stage_demand import stage_demand
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process import command_line

NODES = 4
LIMIT = 3 << 30
"""Bytes that a node's process may hold."""
OFFERED_GB = 3
STEPS, MICRO_BATCHES = 3, 4
DEADLINE_SECONDS = 1800.0
SHAPE: dict[str, Any] = {
    "architecture": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
QUICK = SHAPE | {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
STAGES = ((0, 6), (6, 11), (11, 16), (16, 22))
QUICK_STAGES = ((0, 2), (2, 4), (4, 6), (6, 8))
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "LoRA, base in fp32": ({"method": "lora"}, {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj", "v_proj"]}),
    "all of it, adamw-8bit, weights in bf16": ({"optimizer": "adamw-8bit", "weights": "bf16"}, {}),
}
"""What `[training]` and `[lora]` say, by what it is called."""
MB = 1e6


@dataclass
class Held:
    """Bytes that a node's process has held at most."""

    pid: int
    most: int = 0
    own: int = 0
    """In memory of its own."""


@dataclass(frozen=True)
class Outcome:
    """One way of training."""

    way: str
    parameters: int
    losses: tuple[float, ...]
    counted: tuple[int, ...]
    """Bytes that the plan asks of each stage's node."""
    held: tuple[Held, ...] = field(compare=False)


def job_of(shape: dict[str, Any], way: str) -> str:
    """The job file's text."""
    training, lora = WAYS[way]
    sizes = {"steps": STEPS, "global_batch": MICRO_BATCHES, "micro_batch": 1, "sequence_length": 64}
    tables = {
        "name": "billion",
        "model": shape,
        "data": {"text": "cpython", "tokenizer": "bytes"},
        "training": sizes | {"learning_rate": 1e-4} | training,
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
    }
    return toml(tables | ({"lora": lora} if lora else {}))


def train(runs: Runs, way: str, shape: dict[str, Any], stages: tuple[tuple[int, int], ...]) -> Outcome:
    """Train some steps one way."""
    state = runs.folder / "run"
    job, plan = runs.folder / "job.toml", runs.folder / "plan.json"
    job.write_text(job_of(shape, way), encoding="utf-8")
    plan.write_text(forced(stages, ["abcd"] * MICRO_BATCHES), encoding="utf-8")
    serving = runs.start(
        "dtfm-coordinator", "serve", job, "--state-dir", state, "--listen", "127.0.0.1", "--port", 0,
        "--plan", plan, "--min-nodes", NODES, "--exit-when-done",
    )  # fmt: skip
    invite = state / "invite"
    serving.watch(DEADLINE_SECONDS, invite.exists)
    folders = [runs.folder / f"node-{number}" for number in range(NODES)]
    nodes = [
        runs.start(
            "dtfm-node", "join", "--yes", f"@{invite}", "--state-dir", folder, "--device", "cpu", "--threads", 1,
            "--nice", 0, "--memory", OFFERED_GB,
        )
        for folder in folders
    ]  # fmt: skip
    held = {folder: Held(node.pid) for folder, node in zip(folders, nodes, strict=True)}
    serving.watch(DEADLINE_SECONDS, sampler(held))
    done = rows(state)
    if len(done) != STEPS:
        raise UserError(f"{way}: {len(done)} of {STEPS} steps were made")
    placed, read = Plan.load(state / "plan.json"), Job.load(job)
    config = resolve_config(read.model, vocabulary_size(read.data), read.training.sequence_length)
    peers = {Identity.load_or_create(folder / "key").peer_id: one for folder, one in held.items()}
    order = sorted(peers, key=lambda peer: placed.stage_of(peer) or 0)
    counted = tuple(stage_demand(config, read.training, placed, peer) for peer in order)
    runs.stop()
    for folder in (state, *folders):
        runs.discard(folder)
    losses = tuple(row.loss for row in done)
    return Outcome(way, model_sizes(config).total, losses, counted, tuple(peers[peer] for peer in order))


def sampler(held: dict[Path, Held]) -> Callable[[], bool]:
    """What is to be called again and again while nodes run, to note what they hold."""

    def look() -> bool:
        for one in held.values():
            one.most, one.own = max(one.most, peak_bytes(one.pid)), max(one.own, own_bytes(one.pid))
        return False

    return look


HEADINGS = ("trained", "stage", "counted", "program", "counted + program", "peak", "of its own memory", "limit")


def lines_of(outcome: Outcome, stages: tuple[tuple[int, int], ...], program: int) -> list[tuple[str, ...]]:
    """A way's rows under `HEADINGS`."""
    return [
        (
            outcome.way,
            f"layers {first} to {end - 1}",
            megabytes(counted),
            megabytes(program),
            megabytes(counted + program),
            megabytes(held.most),
            megabytes(held.own),
            megabytes(LIMIT),
        )
        for (first, end), counted, held in zip(stages, outcome.counted, outcome.held, strict=True)
    ]


def megabytes(amount: int) -> str:
    """In MB."""
    return f"{amount / MB:,.0f} MB"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model, to try it out")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    shape, stages = (QUICK, QUICK_STAGES) if options.quick else (SHAPE, STAGES)
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded(), Runs.open("billion") as runs:
        job = runs.folder / "job.toml"
        job.write_text(job_of(shape, next(iter(WAYS))), encoding="utf-8")
        program = base(job)
        outcomes = [
            train(runs, way, shape, stages)
            for way in track(WAYS, description="training", console=console, transient=True)
        ]
    title = f"A llama of {outcomes[0].parameters / 1e9:.2f} billion parameters on {NODES} nodes, {STEPS} steps of "
    title += f"{MICRO_BATCHES} x 64 tokens"
    lines = [line for outcome in outcomes for line in lines_of(outcome, stages, program)]
    show(title, HEADINGS, lines)
    said = [
        f"{one.way}: losses {', '.join(f'{loss:.4f}' for loss in one.losses)}; "
        f"{'all' if all(map(math.isfinite, one.losses)) else 'not all'} finite, and "
        f"{sum(held.most <= LIMIT for held in one.held)} of {NODES} nodes within the limit.\n"
        for one in outcomes
    ]
    print("\n".join(said))
    command = "python -m benchmarks.billion" + (" --quick" if options.quick else "")
    keep(
        options.out, "A billion parameters", command, [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines), *said]
    )
    if not all(math.isfinite(loss) for one in outcomes for loss in one.losses):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
