"""Does communication hide behind compute? Two stages over a link that is slower and slower, schedule by schedule.

`python -m benchmarks.overlap --out FILE` keeps the table. Needs root: see `benchmarks.links`. Each stage's node runs in
a network namespace of its own, the coordinator outside. A first run without a limit says what the busier stage computes
in a step; rates are then set so that one direction's messages take 25 % to 200 % of that. "paced": `[plan] in_flight =
"auto"`, orders made for the link.

Rows lie beside the table as they come: a run that was broken off goes on where it was.

"compute" is what the busier stage computed in a step of the same run (its trace's forwards, backwards and optimizer),
"communication" the bytes of a step's messages in the busier direction over the rate that a plain TCP transfer reached.
No step can be faster than the larger of the two. "predicted" is the makespan model's, made from what the nodes
themselves measured of layers and link before they began; "replayed" is the same model's with what this run's actions
took and the rate that TCP reached: what it leaves of the step is the engine's, what is in it is the schedule's, "the
order allows" no less beside the larger of compute and communication.
"""

import argparse
import itertools
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.links import Link
from benchmarks.runs import Program, Runs, forced, machine, rows, toml
from benchmarks.tables import keep, markdown, show, values, values_with
from dtfm_coordinator.allocator.foundations.links import Links
from dtfm_coordinator.allocator.job_demand import workload
from dtfm_coordinator.allocator.problem.model_demand import ActionSeconds
from dtfm_coordinator.allocator.simulator.simulator import simulate
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.job_file import CodecName, Job, ScheduleName
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process import command_line
from dtfm_protocol.process.trace_format import FILES, NodeTrace, read_trace

SHARES = (0.25, 0.5, 1.0, 2.0)
"""Of compute, that communication is to take."""
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "zero-bubble")
PACED: tuple[ScheduleName, ...] = ("1f1b", "zero-bubble")
STEPS, WARM_UP = 10, 2
LAYERS = 4
DEADLINE_SECONDS = 900.0
JOIN_SECONDS = 120.0
"""A busy machine is slow to start nodes."""


@dataclass(frozen=True)
class Case:
    """What is run over a link."""

    schedule: ScheduleName
    codec: CodecName = "fp32"
    in_flight: Literal["least", "auto"] = "least"
    """As in `[plan]`; with "auto" the layout is the coordinator's, as the order is."""
    micro_batches: int = 8

    @property
    def words(self) -> str:
        """For a table."""
        return self.schedule if self.in_flight == "least" else f"{self.schedule}, paced"


@dataclass(frozen=True)
class Node:
    """Seconds that a node computed, by its trace; steps of the warm-up left out."""

    step: float
    """In a step, the median."""
    actions: Mapping[str, float]
    """For each kind of action and the optimizer, the mean."""

    @classmethod
    def of(cls, trace: NodeTrace) -> "Node":
        """What a node's trace says."""
        steps: defaultdict[int, float] = defaultdict(float)
        actions: defaultdict[str, list[float]] = defaultdict(list)
        for span in trace.spans:
            step = int(span.args.get("step", 0))
            if span.lane in {"compute", "optimizer"} and step > WARM_UP:
                seconds = (span.end - span.begin) / 1e9
                steps[step] += seconds
                actions[span.name.split()[0]].append(seconds)
        return cls(statistics.median(steps.values()), {kind: statistics.mean(took) for kind, took in actions.items()})


@dataclass(frozen=True)
class Result:
    """A case over one link."""

    case: Case
    step: float
    """Seconds, the median."""
    predicted: float
    plan: Plan
    nodes: Mapping[str, Node]
    message_bytes: tuple[int, int]
    """Of one micro-batch, ahead and back."""

    @property
    def compute(self) -> float:
        """Seconds of a step, of the busier stage."""
        return max(node.step for node in self.nodes.values())

    @property
    def bytes_a_step(self) -> int:
        """In the busier direction."""
        return self.case.micro_batches * max(self.message_bytes)

    def communication(self, reached: float) -> float:
        """Seconds of a step's messages at `reached` bits a second."""
        return 8 * self.bytes_a_step / reached

    def replayed(self, reached: float) -> float:
        """Seconds of a simulated step, with this run's actions and a link of `reached` bits a second."""
        index = {peer: row for row, peer in enumerate(self.plan.peers)}
        count = len(index)
        anywhere = np.full(count, np.inf)
        rates = np.full((count, count), reached / 8)
        np.fill_diagonal(rates, np.inf)
        taken = {
            peer: ActionSeconds(node.actions["forward"], node.actions["backward"], node.actions.get("weight", 0.0))
            for peer, node in self.nodes.items()
        }
        updates = {peer: node.actions["AdamW"] for peer, node in self.nodes.items()}
        links = Links(index, np.zeros((count, count)), rates, anywhere, anywhere)
        return simulate(self.plan, links, taken, self.message_bytes, [0.0] * count, updates).cost.total


def job_of(case: Case, steps: int) -> str:
    """The job file's text."""
    return toml(
        {
            "name": "overlap",
            "model": {
                "architecture": "llama",
                "hidden_size": 256,
                "intermediate_size": 704,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "tie_word_embeddings": False,
            },
            "data": {"text": "cpython", "tokenizer": "bytes"},
            "training": {
                "steps": steps,
                "global_batch": 2 * case.micro_batches,
                "micro_batch": 2,
                "sequence_length": 128,
                "learning_rate": 1e-3,
            },
            "evaluation": {"every": 0},
            "plan": {
                "stages": 2,
                "replicas": 1,
                "schedule": case.schedule,
                "wire": case.codec,
                "in_flight": case.in_flight,
            },
            "checkpoint": {"every": 0},
        }
    )


class Bench:
    """Runs cases over one link."""

    def __init__(self, runs: Runs, link: Link, steps: int) -> None:
        self._runs, self._link, self._steps = runs, link, steps
        self._numbers = itertools.count(1)

    def run(self, case: Case) -> Result:
        """Train over the link as it is now."""
        folder = self._runs.folder / f"run-{next(self._numbers)}"
        state, traces, job, plan = folder / "state", folder / "traces", folder / "job.toml", folder / "plan.json"
        folder.mkdir()
        job.write_text(job_of(case, self._steps), encoding="utf-8")
        halves = [(0, LAYERS // 2), (LAYERS // 2, LAYERS)]
        plan.write_text(forced(halves, ["ab"] * case.micro_batches), encoding="utf-8")
        layout = ("--plan", plan) if case.in_flight == "least" else ()
        before = self._link.sent_bytes()
        serving = self._runs.start(
            "dtfm-coordinator", "serve", job, "--state-dir", state, "--listen", self._link.hub, "--port", 0,
            *layout, "--min-nodes", 2, "--exit-when-done",
        )  # fmt: skip
        serving.watch(DEADLINE_SECONDS, (state / "invite").exists)
        nodes = [self._join(number, folder, traces) for number in range(2)]
        serving.watch(DEADLINE_SECONDS, lambda: _all_well(nodes))
        for node in nodes:
            node.watch(DEADLINE_SECONDS)
        sent = [now - then for now, then in zip(self._link.sent_bytes(), before, strict=True)]
        placed = Plan.load(state / "plan.json")
        messages = workload(Job.load(job)).demand.message_bytes(placed.wire)
        if min(sent) < self._steps * case.micro_batches * min(messages):
            raise UserError(f"only {min(sent)} bytes went over the limited link: there is another way round it")
        counted = rows(state)[WARM_UP:]
        assert len(counted) == self._steps - WARM_UP
        predicted = counted[0].predicted_seconds
        assert predicted is not None
        read = [read_trace(path) for path in traces.glob(FILES)]
        shutil.rmtree(folder)
        step = statistics.median(row.seconds for row in counted)
        return Result(case, step, predicted, placed, {trace.header.peer: Node.of(trace) for trace in read}, messages)

    def _join(self, number: int, folder: Path, traces: Path) -> Program:
        """Start a node of the run in `folder`, with a state folder of its own: each run is another swarm."""
        return self._runs.start(
            "dtfm-node", "join", "--yes", f"@{folder / 'state' / 'invite'}", "--state-dir", folder / f"node-{number}",
            "--announce", f"{self._link.addresses[number]}:7800", "--device", "cpu", "--threads", 1,
            "--timeout", JOIN_SECONDS, "--trace", traces,
            prefix=self._link.inside(number),
        )  # fmt: skip


def _all_well(nodes: Iterable[Program]) -> bool:
    """False, to go on waiting. Raises UserError where a node has failed."""
    for node in nodes:
        node.check()
    return False


HEADINGS = (
    "link",
    "TCP reaches",
    "micro-batches",
    "schedule",
    "wire",
    "compute",
    "communication",
    "step",
    "step / max(compute, communication)",
    "the order allows",
    "predicted",
    "step / predicted",
    "replayed",
    "step / replayed",
)


def row(rate: float | None, reached: float, result: Result) -> tuple[str, ...]:
    """A result as a row under `HEADINGS`."""
    communication, replayed = result.communication(reached), result.replayed(reached)
    return (
        "no limit" if rate is None else f"{rate / 1e6:.1f} Mbit/s",
        f"{reached / 1e6:,.1f} Mbit/s",
        str(result.case.micro_batches),
        result.case.words,
        result.case.codec,
        f"{result.compute:.3f} s",
        f"{communication:.3f} s ({100 * communication / result.compute:.0f} %)",
        f"{result.step:.3f} s",
        f"{result.step / max(result.compute, communication):.2f}",
        f"{replayed / max(result.compute, communication):.2f}",
        f"{result.predicted:.3f} s",
        f"{result.step / result.predicted:.2f}",
        f"{replayed:.3f} s",
        f"{result.step / replayed:.2f}",
    )


def key_of(share: float, case: Case) -> str:
    """A row's key among those that lie beside the table."""
    return f"{share:g} of compute, {case.micro_batches} micro-batches, {case.words}, {case.codec}"


def measured_reference(out: Path | None, bench: Bench, link: Link, case: Case) -> dict[str, Any]:
    """What rates are set by: a first run without a limit; the one that lies beside the table, if one does."""
    found = values(out).get("reference")
    if found is None:
        free = min(link.check(None))
        result = bench.run(case)
        found = {
            "bytes": result.bytes_a_step,
            "compute": result.compute,
            "message_bytes": max(result.message_bytes),
            "row": row(None, free, result),
        }
        values_with(out, "reference", found)
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run, of which {WARM_UP} do not count")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--quick", action="store_true", help="communication of 100 % of compute alone, to try it out")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    shares = (1.0,) if options.quick else SHARES
    kinds = [*map(Case, SCHEDULES), *(Case(name, in_flight="auto") for name in PACED), Case("1f1b", "int8")]
    cases = [replace(case, micro_batches=count) for count in options.micro_batches for case in kinds]
    facts, console = machine(), Console(stderr=True)
    cells = [(share, case) for share in shares for case in cases]
    with command_line.guarded(), Link.open() as link, Runs.open("overlap") as runs:
        bench = Bench(runs, link, options.steps)
        reference = measured_reference(options.out, bench, link, cases[0])
        limited, kept = 0.0, values(options.out)
        for share, case in track(cells, description="training", console=console, transient=True):
            key = key_of(share, case)
            if key in kept:
                continue
            rate = 8 * reference["bytes"] / (share * reference["compute"])
            if limited != rate:
                link.limit(rate)
                limited, reached = rate, min(link.check(rate))
            kept |= values_with(options.out, key, row(rate, reached, bench.run(case)))
    lines = [reference["row"], *(kept[key_of(*cell)] for cell in cells)]
    title = "A step over a limited link: 2 stages on 2 nodes, "
    title += (
        f"messages of {reference['message_bytes'] / 1e3:.0f} kB in fp32; medians of {options.steps - WARM_UP} steps"
    )
    show(title, HEADINGS, lines)
    command = f"python -m benchmarks.overlap{' --quick' if options.quick else ''} --steps {options.steps}"
    command += f" --micro-batches {' '.join(map(str, options.micro_batches))}"
    keep(options.out, "Overlap", command, [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines)])


if __name__ == "__main__":
    main()
