"""What a node's memory is taken by: its peak, beside what the allocator counts with.

`python -m benchmarks.memory --out FILE` keeps the table. Peaks are the kernel's (VmHWM of the node's process, without
its libp2p daemon), read until the process ends. From each, "base" is taken away: the peak of a process that has loaded
what a node loads and holds no model. The rest is divided by what the allocator says that the stage takes: 16 bytes a
parameter (weights, gradients and AdamW's moments, fp32), and activations by the schedule.

Rows lie beside the table as they come: a run that was broken off goes on where it was.
"""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import track

from benchmarks.loaded import peak_bytes
from benchmarks.runs import Program, Runs, forced, machine, rows, toml
from benchmarks.tables import keep, markdown, show, values, values_with
from dtfm_coordinator.allocator.job_demand import workload
from dtfm_coordinator.allocator.problem.model_demand import ModelDemand, memory_needed
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.job.job_file import Job, ScheduleName
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import actions_of, most_in_flight
from dtfm_protocol.process import command_line

STEPS = 3
ASKED = 1.1
"""The most that a node may take, relative to what the allocator counts with."""
DEADLINE_SECONDS = 900.0
MB = 1e6


@dataclass(frozen=True)
class Size:
    """How large the model is."""

    hidden: int
    intermediate: int
    heads: int
    layers: int
    """Of each stage."""
    sequence: int


FULL = Size(hidden=1024, intermediate=2816, heads=16, layers=8, sequence=128)
QUICK = Size(hidden=768, intermediate=2048, heads=12, layers=4, sequence=128)
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Case:
    """A plan of two nodes."""

    name: str
    stages: int
    schedule: ScheduleName = "1f1b"
    recompute: tuple[int, ...] = ()
    ahead: int = 0
    """Micro-batches that the first stage keeps in flight beyond those that the schedule does over free links."""

    @property
    def micro_batches(self) -> int:
        """Of a step."""
        return MICRO_BATCHES + self.ahead

    @property
    def pacing(self) -> dict[str, object]:
        """What the plan says besides, where more are in flight: a link with so long a delay that all of them are."""
        if not self.ahead:
            return {}
        split = self.schedule == "zero-bubble"
        kept = [2 + self.ahead, 2 if split else 1]
        far = self.micro_batches * 10_000
        actions = {"forward": [1000, 1000], "backward": [1000, 1000], **({"weight": [1000, 1000]} if split else {})}
        links = {"ahead": [0], "ahead_delay": [far], "back": [0], "back_delay": [far]}
        return {"pacing": {**actions, **links, "in_flight": kept, "kept": kept}}


MORE = (2, 8, 32)
CASES = (
    Case("2 stages", 2),
    Case("2 stages", 2, "gpipe"),
    Case("2 stages", 2, "zero-bubble"),
    Case("2 stages, both recompute", 2, recompute=(0, 1)),
    Case("1 stage x 2 replicas", 1),
    *(Case(f"2 stages, {ahead} more in flight", 2, ahead=ahead) for ahead in MORE),
    *(Case(f"2 stages, {ahead} more in flight", 2, "zero-bubble", ahead=ahead) for ahead in MORE),
    *(Case(f"2 stages, {ahead} more in flight, both recompute", 2, recompute=(0, 1), ahead=ahead) for ahead in MORE),
)


@dataclass
class Peaks:
    """Bytes that a node's process has held at most."""

    pid: int
    before: int = 0
    """Until the checkpoint after the last step was begun."""
    most: int = 0


@dataclass(frozen=True)
class Measured:
    """One node under one plan."""

    case: Case
    stage: int
    state: int
    in_flight: int
    activations: int
    peaks: Peaks = field(compare=False)


def job_of(size: Size, case: Case) -> str:
    """The job file's text; a single stage is as large as each of two."""
    return toml(
        {
            "name": "memory",
            "model": {
                "architecture": "llama",
                "hidden_size": size.hidden,
                "intermediate_size": size.intermediate,
                "num_hidden_layers": size.layers * case.stages,
                "num_attention_heads": size.heads,
                "num_key_value_heads": size.heads,
                "tie_word_embeddings": False,
            },
            "data": {"text": "cpython", "tokenizer": "bytes"},
            "training": {
                "steps": STEPS,
                "global_batch": case.micro_batches,
                "micro_batch": 1,
                "sequence_length": size.sequence,
                "learning_rate": 1e-4,
            },
            "evaluation": {"every": 0},
            "checkpoint": {"every": 0},
        }
    )


def measure(runs: Runs, size: Size, case: Case) -> Iterator[Measured]:
    """Run one plan; its nodes, by stage."""
    state = runs.folder / f"{case.stages}-{case.schedule}-{len(case.recompute)}-{case.ahead}"
    job, plan = state.with_suffix(".toml"), state.with_suffix(".json")
    job.write_text(job_of(size, case), encoding="utf-8")
    stages = [(index * size.layers, (index + 1) * size.layers) for index in range(case.stages)]
    routes = ["ab"] * case.micro_batches if case.stages == 2 else ["a", "b"] * (case.micro_batches // 2)
    text = forced(stages, routes, schedule=case.schedule, recompute=case.recompute, **case.pacing)
    plan.write_text(text, encoding="utf-8")
    swarm = runs.swarm(job, 2, state, "--plan", plan)
    peaks: dict[str, Peaks] = {}
    swarm.watch(DEADLINE_SECONDS, sampler(swarm, state, peaks))
    assert len(rows(state)) == STEPS
    placed, demand = Plan.load(state / "plan.json"), workload(Job.load(job)).demand
    needed = memory_needed(placed, demand)
    runs.discard(state)
    for peer in placed.peers:
        stage = placed.stage_of(peer)
        assert stage is not None
        held = held_by(demand, placed, stage)
        flying = most_in_flight(actions_of(placed, peer))
        yield Measured(case, stage, held, flying, needed[peer] - held, peaks[peer])


def held_by(demand: ModelDemand, plan: Plan, stage: int) -> int:
    """Bytes of weights, gradients and the optimizer's state."""
    return int(demand.table.parameter_bytes * demand.parameters(*plan.stages[stage]))


def sampler(swarm: Program, state: Path, peaks: dict[str, Peaks]) -> Callable[[], bool]:
    """What is to be called again and again while a swarm runs, to note its nodes' peaks by peer."""

    def look() -> bool:
        if len(peaks) < 2:
            for pid, folder in nodes_of(swarm):
                if (folder / "key").exists() and (folder / "status.json").exists():
                    peaks.setdefault(Identity.load_or_create(folder / "key").peer_id, Peaks(pid))
        keeping = any(state.glob("nodes/*/snapshots/*"))
        for peak in peaks.values():
            now = peak_bytes(peak.pid)
            peak.most = max(peak.most, now)
            if not keeping:
                peak.before = peak.most
        return False

    return look


def nodes_of(swarm: Program) -> Iterator[tuple[int, Path]]:
    """Process and state dir of each node of a swarm."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(swarm.pid).children():
            arguments = child.cmdline()
            if "join" in arguments:
                yield child.pid, Path(arguments[arguments.index("--state-dir") + 1])


def base(job: Path) -> int:
    """Bytes of a process that has loaded what a node of `job` loads."""
    command = [sys.executable, "-m", "benchmarks.loaded", str(job)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


HEADINGS = (
    "plan",
    "schedule",
    "stage",
    "weights, gradients, optimizer",
    "micro-batches in flight",
    "activations",
    "base",
    "peak before the checkpoint",
    "peak",
    "(peak - base) / (state + activations)",
)


def row(measured: Measured, base: int) -> tuple[str, ...]:
    """A node as a row under `HEADINGS`."""
    return (
        measured.case.name,
        measured.case.schedule,
        str(measured.stage + 1),
        megabytes(measured.state),
        str(measured.in_flight),
        megabytes(measured.activations),
        megabytes(base),
        f"{megabytes(measured.peaks.before)} ({relative(measured, base, measured.peaks.before):.2f})",
        megabytes(measured.peaks.most),
        f"{relative(measured, base, measured.peaks.most):.2f}",
    )


def relative(measured: Measured, base: int, peak: int) -> float:
    """What a node has held beyond `base`, relative to what the allocator counts with."""
    return (peak - base) / (measured.state + measured.activations)


def megabytes(amount: int) -> str:
    """In MB."""
    return f"{amount / MB:,.0f} MB"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model on two of the plans, to try it out")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    size, cases = (QUICK, (CASES[0], CASES[4])) if options.quick else (FULL, CASES)
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded(), Runs.open("memory") as runs:
        job = runs.folder / "job.toml"
        job.write_text(job_of(size, CASES[0]), encoding="utf-8")
        nothing, kept = base(job), values(options.out)
        for case in track(cases, description="training", console=console, transient=True):
            if (key := f"{case.name}, {case.schedule}") not in kept:
                nodes = measure(runs, size, case)
                found = [[row(one, nothing), relative(one, nothing, one.peaks.most)] for one in nodes]
                kept |= values_with(options.out, key, found)
    pairs = [pair for case in cases for pair in kept[f"{case.name}, {case.schedule}"]]
    title = f"Memory of a node: llama, {size.layers} layers of {size.hidden} a stage, {MICRO_BATCHES} or more "
    title += f"micro-batches of {size.sequence} tokens, {STEPS} steps, fp32"
    lines = [line for line, _ in pairs]
    show(title, HEADINGS, lines)
    worst = max(ratio for _, ratio in pairs)
    said = f"The largest ratio is {worst:.2f}; at most {ASKED:g} is asked.\n"
    command = "python -m benchmarks.memory" + (" --quick" if options.quick else "")
    keep(options.out, "Memory", command, [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines), said])


if __name__ == "__main__":
    main()
