"""Does nothing but the stated refusals come out of any parser, however odd the bytes, and does nothing stay in memory?

    python -m benchmarks.fuzzing [--inputs N] [--only TEXT] [--seed 0] [--out benchmarks/results/fuzzing.md]

Each parser that bytes from others reach is given inputs that are nearly valid: bits flipped, pieces left out, said
twice, from another input or random, lengths and numbers replaced, and where it is JSON, its parts replaced. Where a
signature would hide what is behind it, the input is signed. An input counts as "taken" where the parser found nothing
wrong. `growth`: resident memory after all inputs beside that after the first fifth. `peak`: the most that there was at
any time, beside that before. Seconds are the processor's; inputs a second include their making, and signing where it is
done.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.fuzzing.swarm_sides import Sides
from benchmarks.fuzzing.targets import all_targets
from benchmarks.fuzzing.trial import GROWTH_LIMIT, SLOWEST_SECONDS, Outcome, measured
from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.process.logs import log

HEADINGS = ("parser", "inputs", "taken", "inputs/s", "slowest", "growth", "peak", "faults")


def campaign(inputs: int, seed: int, only: str = "") -> list[Outcome]:
    """Try every target whose name has `only` in it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    sides, outcomes = Sides(), list[Outcome]()
    try:
        targets = [target for target in all_targets(sides) if only in target.name]
        with Progress(*columns, console=console) as progress:
            whole = progress.add_task("all", total=len(targets))
            for target in targets:
                own = inputs // target.cost
                task = progress.add_task(target.name, total=own)
                rng = random.Random(f"{seed} {target.name}")
                outcome = measured(target, own, rng, lambda done, task=task: progress.update(task, completed=done))
                outcomes.append(outcome)
                progress.remove_task(task)
                progress.advance(whole)
                console.print(" | ".join(row(outcome)), highlight=False, markup=False, soft_wrap=True)
    finally:
        sides.close()
    return outcomes


def row(outcome: Outcome) -> tuple[str, ...]:
    """One parser as a row under `HEADINGS`."""
    return (
        outcome.name,
        f"{outcome.inputs:,}",
        f"{100 * outcome.taken / max(1, outcome.inputs):.1f} %",
        f"{outcome.inputs / outcome.seconds:,.0f}",
        f"{1e3 * outcome.slowest:.0f} ms",
        f"{outcome.growth / 2**20:.1f} MiB",
        f"{outcome.peak / 2**20:.0f} MiB",
        str(len(outcome.faults)),
    )


def told(outcomes: Sequence[Outcome]) -> str:
    """All faults, each with the first input that leads to it."""
    lines = [
        f"- {outcome.name}: {fault.what}; input {fault.data[:400]!r} ({len(fault.data)} bytes)"
        for outcome in outcomes
        for fault in outcome.faults.values()
    ]
    return "\n".join(lines)


def main() -> None:
    """Run it; exit with 1 where a parser does what it must not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="mutated inputs of each parser")
    parser.add_argument("--only", default="", help="parsers whose names have this in them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    log.setLevel("CRITICAL")
    outcomes = campaign(options.inputs, options.seed, options.only)
    title = f"{len(outcomes)} parsers, {options.inputs:,} inputs each (over sockets fewer)"
    rows = [row(outcome) for outcome in outcomes]
    show(title, HEADINGS, rows)
    bad = [outcome.name for outcome in outcomes if not outcome.is_good]
    verdict = (
        f"Not as it must be: {', '.join(bad)}.\n" if bad else
        f"Nothing but the stated refusals came out, no input took {SLOWEST_SECONDS:g} s, and no parser kept "
        f"{GROWTH_LIMIT >> 20} MiB.\n"
    )  # fmt: skip
    print(verdict, told(outcomes), sep="\n")
    command = f"python -m benchmarks.fuzzing --inputs {options.inputs} --seed {options.seed}"
    parts = [f"Machine: {machine()}.\n", markdown(title, HEADINGS, rows), verdict, told(outcomes)]
    keep(options.out, "Fuzzing", command + (f" --only '{options.only}'" if options.only else ""), parts)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
