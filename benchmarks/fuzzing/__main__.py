"""Does nothing but the stated refusals come out of any parser, however odd the bytes, and does nothing stay in memory?

    python -m benchmarks.fuzzing [--inputs N] [--only TEXT] [--seed 0] [--anew] [--out benchmarks/results/fuzzing.md]

Each parser that bytes from others reach is given inputs that are nearly valid: bits flipped, pieces left out, said
twice, from another input or random, lengths and numbers replaced, and where it is JSON, its parts replaced. Where a
signature would hide what is behind it, the input is signed, by keyed hashes that this process takes for signatures, as
Ed25519 would take most of the time; what is not signed goes to the real check, and certificates are real. An input
counts as "taken" where the parser found nothing wrong. `growth`: resident memory after all inputs beside that after the
first fifth. `peak`: the most that there was at any time, beside that before. Seconds are the processor's; inputs a
second include their making, and signing where it is done. Over sockets, where each takes longer, there are a hundredth
of them. What was stopped goes on where it was.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from benchmarks.fuzzing.quick_signatures import quick_signatures
from benchmarks.fuzzing.swarm_sides import Sides
from benchmarks.fuzzing.targets import all_targets
from benchmarks.fuzzing.trial import GROWTH_LIMIT, SLOWEST_SECONDS, Outcome, Target, measured
from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show, values, values_with
from dtfm_protocol.process.logs import log

HEADINGS = ("parser", "inputs", "taken", "inputs/s", "slowest", "growth", "peak", "faults")


def campaign(options: argparse.Namespace) -> list[Outcome]:
    """Try every parser that is asked for and has not had so many inputs yet; return what came of all, kept ones too."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    kept = {name: Outcome.of(found) for name, found in values(options.out).items()}
    sides = Sides()
    try:
        targets = list(all_targets(sides))
        due = [one for one in targets if options.only in one.name and not _is_done(kept.get(one.name), one, options)]
        with Progress(*columns, console=console) as progress:
            whole = progress.add_task("all", total=len(due))
            for target in due:
                own = options.inputs // target.cost
                task = progress.add_task(target.name, total=own)
                rng = random.Random(f"{options.seed} {target.name}")
                outcome = measured(target, own, rng, partial(_show, progress, task))
                kept[target.name] = outcome
                values_with(options.out, target.name, outcome.kept())  # at once: all take hours
                progress.remove_task(task)
                progress.advance(whole)
                console.print(" | ".join(row(outcome)), highlight=False, markup=False, soft_wrap=True)
    finally:
        sides.close()
    return [kept[target.name] for target in targets if target.name in kept]


def _show(progress: Progress, task: TaskID, done: int) -> None:
    progress.update(task, completed=done)


def _is_done(outcome: Outcome | None, target: Target, options: argparse.Namespace) -> bool:
    return not options.anew and outcome is not None and outcome.inputs >= options.inputs // target.cost


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
    parser.add_argument("--anew", action="store_true", help="try those again that had so many inputs")
    parser.add_argument("--out", type=Path, help="where to keep the table; beside it lies what is done of it (JSON)")
    options = parser.parse_args()
    log.setLevel("CRITICAL")
    with quick_signatures():
        outcomes = campaign(options)
    title = f"{len(outcomes)} parsers"
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
    keep(options.out, "Fuzzing", command, parts)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
