"""What more micro-batches in flight, and orders that are made for the links, save: simulated steps, and their bound.

A gpt2 of 1.2 billion parameters (24 layers, hidden 2048, sequences of 2,048, one a micro-batch, bf16) on 8 members of
the paper's networks, and of volunteers at home. Before: `[plan] in_flight = "least"`, the schedules for free links.
After: "auto". Both are searched with the same budget of evaluations and the same seed, and judged by the exact
simulator; the schedule is open in both. The lower bound knows which peers have which links, and no order of compute: it
holds for every plan.

With `--slow-wire int8` before is "auto", and after lets slow boundaries between stages be crossed in that codec, too:
it searches as long by one wire over all boundaries, and then two thirds as long again with all of them coarse.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import keep, markdown, show
from dtfm_coordinator.allocator.allocate import allocate, compile_now
from dtfm_coordinator.allocator.coarse_boundaries import coarse_wires
from dtfm_coordinator.allocator.job_demand import requirements
from dtfm_coordinator.allocator.workload import Workload
from dtfm_lab.bounds.step_bound import least_bound
from dtfm_lab.networks.catalogue import network
from dtfm_protocol.job.job_file import Model, Planning, Training
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.schedule import actions_of, most_in_flight

MEMBERS = 8
NETWORKS = ("worldwide", "regional", "universities", "home")
MODEL = {"architecture": "gpt2", "n_embd": 2048, "n_layer": 24, "n_head": 16}
SEQUENCE, VOCABULARY = 2048, 50257
WORLDS = (*((name, 0) for name in NETWORKS), ("home", 1), ("home", 2))
"""Networks and their seeds: only those of volunteers at home differ by it."""
HEADINGS = ("network", "micro-batches", "bound", "before", "after", "after / before", "before, as", "after, as", "kept")
SLOW_HEADINGS = (
    "network",
    "micro-batches",
    "bf16 alone",
    "with slow_wire",
    "with / alone",
    "alone, as",
    "with, as",
    "coarse",
)


def work(micro_batches: int, *, open_pace: bool, slow_wire: str = "none") -> Workload:
    """The job."""
    training = Training.model_validate(
        {
            "steps": 1,
            "global_batch": micro_batches,
            "micro_batch": 1,
            "sequence_length": SEQUENCE,
            "learning_rate": 1e-4,
            "precision": "bf16",
        }
    )
    in_flight = "auto" if open_pace else "least"
    planning = Planning.model_validate({"wire": "bf16", "in_flight": in_flight, "slow_wire": slow_wire})
    config = resolve_config(Model.model_validate(MODEL), VOCABULARY, SEQUENCE)
    return Workload(requirements(config, training), micro_batches, planning)


def words(plan: Plan) -> str:
    """A plan's schedule and the numbers of peers of its stages."""
    counts = [len(plan.replicas(stage)) for stage in range(len(plan.stages))]
    return f"{plan.schedule}, {' + '.join(map(str, counts))}"


def rows(evaluations: int, micro_batches: list[int]) -> Iterator[tuple[str, ...]]:
    """A row for each network and number of micro-batches."""
    for name in NETWORKS:
        view = network(name, MEMBERS, 0)
        for count in micro_batches:
            bound = least_bound(view, work(count, open_pace=False))
            before, after = (
                allocate(view, work(count, open_pace=chosen), 0, None, evaluations) for chosen in (False, True)
            )
            assert before.cost is not None
            assert after.cost is not None
            yield (
                name,
                str(count),
                f"{bound:.2f} s",
                f"{before.cost.total:.2f} s",
                f"{after.cost.total:.2f} s",
                f"{after.cost.total / before.cost.total:.2f}",
                words(before),
                words(after),
                "/".join(str(max(most_in_flight(actions_of(plan, p)) for p in plan.peers)) for plan in (before, after)),
            )


def slow_rows(evaluations: int, micro_batches: list[int], codec: str) -> Iterator[tuple[str, ...]]:
    """A row for each network and number of micro-batches: one wire over all boundaries, and `codec` over slow ones."""
    for name, seed in WORLDS:
        view = network(name, MEMBERS, seed)
        for count in micro_batches:
            alone, coarse = (
                allocate(view, work(count, open_pace=True, slow_wire=slow), 0, None, evaluations)
                for slow in ("none", codec)
            )
            assert alone.cost is not None
            assert coarse.cost is not None
            yield (
                f"{name}, seed {seed}" if seed else name,
                str(count),
                f"{alone.cost.total:.2f} s",
                f"{coarse.cost.total:.2f} s",
                f"{coarse.cost.total / alone.cost.total:.2f}",
                words(alone),
                words(coarse),
                f"{len(coarse_wires(coarse))} of {len(coarse.stages) - 1}",
            )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=8000, help="layouts that each search may look at")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--slow-wire", choices=("fp16", "bf16", "int8"), help="compare with this [plan] slow_wire")
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    compile_now(print)
    command = f"python -m benchmarks.orders --evaluations {options.evaluations} --micro-batches "
    command += " ".join(map(str, options.micro_batches))
    if options.slow_wire is not None:
        found = list(slow_rows(options.evaluations, options.micro_batches, options.slow_wire))
        title = f"Simulated seconds of a step, {MEMBERS} members, {options.evaluations} evaluations a search"
        show(title, SLOW_HEADINGS, found)
        keep(
            options.out,
            "A coarser wire over slow boundaries",
            f"{command} --slow-wire {options.slow_wire}",
            [
                f'Peers by stages; "coarse": boundaries between stages in {options.slow_wire}, of all. Without it '
                "a plan's step would be 2 % longer for each. Beyond the search that is made without, layouts under "
                "coarse boundaries are searched with two thirds as many evaluations.\n",
                markdown(title, SLOW_HEADINGS, found),
            ],
        )
        return
    found = list(rows(options.evaluations, options.micro_batches))
    title = f"Simulated seconds of a step, {MEMBERS} members, {options.evaluations} evaluations a search"
    show(title, HEADINGS, found)
    keep(
        options.out,
        "Orders for slow links",
        command,
        [
            'Peers by stages; "kept": most micro-batches whose activations a peer keeps, before/after. '
            "The bound holds for every plan, whatever its order.\n",
            markdown(title, HEADINGS, found),
        ],
    )


if __name__ == "__main__":
    main()
