"""What is lost where states are kept in less than fp32: the loss after training, beside fp32's of the same seeds.

`python -m benchmarks.kept_states --out FILE` keeps the table. A tiny llama is trained in this process, as `dtfm-node
solo` trains it, once for each seed and each way of keeping weights and moments. A seed has the same initial weights (to
what weights are kept in) and the same order of the text in all ways, so that they are compared pair by pair; the
interval is Student's, of the mean of the pairs' differences.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from scipy import stats

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_node.commands.solo import Solo
from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.data.prepare import prepare
from dtfm_protocol.job.job_file import Job, OptimizerName, WeightsName
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.process import command_line

STEPS, SEEDS = 300, 5
QUICK_STEPS, QUICK_SEEDS = 20, 2
CONFIDENCE = 0.95
CPU = torch.device("cpu")


class Way(NamedTuple):
    """How a state is kept."""

    optimizer: OptimizerName
    weights: WeightsName

    @property
    def keys(self) -> str:
        """What the job file says."""
        return f'optimizer = "{self.optimizer}", weights = "{self.weights}"'


REFERENCE = Way("adamw", "fp32")
WAYS = (Way("adamw-8bit", "fp32"), Way("adamw", "bf16"), Way("adamw-8bit", "bf16"))


def job_of(steps: int) -> Job:
    """The job."""
    values: dict[str, Any] = {
        "name": "kept-states",
        "model": {
            "architecture": "llama",
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        "data": {"text": "cpython"},
        "training": {
            "steps": steps,
            "global_batch": 8,
            "micro_batch": 8,
            "sequence_length": 64,
            "learning_rate": 3e-3,
            "warmup_steps": steps // 10,
        },
        "evaluation": {"every": steps, "sequences": 128},
    }
    return Job.read(values, "the benchmark's job")


def loss_of(job: ResolvedJob, folder: Path, way: Way, seed: int) -> float:
    """The loss on held-out text after the last step, in nats a token."""
    chosen = {"optimizer": way.optimizer, "weights": way.weights, "seed": seed}
    solo = Solo(job.model_copy(update={"training": job.training.model_copy(update=chosen)}), folder, CPU)
    rows = [solo.step(step) for step in range(1, job.training.steps + 1)]
    assert rows[-1].eval_loss is not None
    return rows[-1].eval_loss


HEADINGS = ("", "bytes a parameter", "loss", "more than fp32's", "interval of 95 %")


def row(way: Way, losses: list[float], reference: list[float]) -> tuple[str, ...]:
    """One way as a row under `HEADINGS`, with each seed's loss."""
    first = (f"`{way.keys}`", f"{state_table(*way).parameter_bytes:.2f}", f"{statistics.mean(losses):.4f}")
    if way == REFERENCE:
        return *first, "", ""
    pairs = [ours - theirs for ours, theirs in zip(losses, reference, strict=True)]
    error = statistics.stdev(pairs) / len(pairs) ** 0.5
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(pairs) - 1)) * error
    mean = statistics.mean(pairs)
    return *first, f"{mean:+.4f}", f"{mean - half:+.4f} to {mean + half:+.4f}"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps and seeds, to try it out")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    steps, seeds = (QUICK_STEPS, QUICK_SEEDS) if options.quick else (STEPS, SEEDS)
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded(), tempfile.TemporaryDirectory(prefix="kept-states-") as name:
        torch.set_num_threads(1)
        job = prepare(job_of(steps), Path(name), console.print)
        runs = [(way, seed) for way in (REFERENCE, *WAYS) for seed in range(seeds)]
        losses: dict[Way, list[float]] = {way: [] for way, _ in runs}
        for way, seed in track(runs, description="training", console=console, transient=True):
            losses[way].append(loss_of(job, Path(name), way, seed))
        lines = [row(way, found, losses[REFERENCE]) for way, found in losses.items()]
        title = f"Loss on held-out text after {steps} steps, {seeds} seeds"
        show(title, HEADINGS, lines)
        command = "python -m benchmarks.kept_states" + (" --quick" if options.quick else "")
        keep(
            options.out,
            "States in less than fp32",
            command,
            [f"Machine: {facts}.\n", f"{job_words(job)}\n", markdown(title, HEADINGS, lines)],
        )


def job_words(job: ResolvedJob) -> str:
    """What is trained, in a line."""
    config, training = job.config, job.training
    return (
        f"A {config['model_type']} of {config['num_hidden_layers']} layers of hidden {config['hidden_size']}; steps of "
        f"{training.global_batch} x {training.sequence_length} bytes of text, learning rate "
        f"{training.learning_rate:g}, products in fp32. Loss in nats a token, the mean over the seeds."
    )


if __name__ == "__main__":
    main()
