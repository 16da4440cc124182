"""Are this project's training steps as fast as plain PyTorch's? Swarms on this machine against `torch.distributed`.

    python -m benchmarks.pipelines [--only "2 stages"] [--quick] [--out benchmarks/results/pipelines.md]

All contenders train the same model from the same weights on the same tokens with the same AdamW, in fp32 and with one
thread a process (two for what is one process alone); the losses of their first steps must agree, or the benchmark
fails. They take turns: a round runs every contender once, on its own, and ratios are taken within rounds. A step lasts
from the end of the one before to its own, so that clipping by the global norm and the optimizer are in it. Beside it
stands the processor time of a step: a slow contender either works more than the other, or waits more.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.baselines import ddp, one_process, torch_pipeline
from benchmarks.baselines.work import resolve
from benchmarks.contenders import Baseline, Contender, Course, Shape, Solo, Swarm
from benchmarks.processes import Team, prepare
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.job.job_file import ScheduleName
from dtfm_protocol.process.state_dir import check_writable

WARM_UP = 2
"""Steps that are not timed: memory is touched for the first time, AdamW makes its moments."""
COMPARED = 2
"""First steps whose losses must agree: the first proves the forward; the second the backward, clip and optimizer."""
TOLERANCE = 1e-4
STALLED_SECONDS = 300.0
REPORT_SECONDS = 1.5
"""How late a row may be: nodes hand in theirs every second."""
QUICK = Shape(width=256, intermediate=704, length=64)
HEADINGS = (
    "this project",
    "tokens/s",
    "plain PyTorch",
    "tokens/s",
    "ours / theirs",
    "range",
    "CPU of a step, ours",
    "CPU of a step, theirs",
)


@dataclass(frozen=True)
class Duel:
    """One line of a table."""

    ours: Contender
    theirs: Contender


@dataclass(frozen=True)
class Run:
    """What one contender did in one round."""

    losses: list[float]
    seconds: float
    """The median step."""
    cpu: dict[str, float]
    """Processor seconds a step, by role."""
    others: float
    """Cores that the machine's other processes took meanwhile."""


Round = dict[Contender, Run]


def comparisons(shape: Shape) -> dict[str, list[Duel]]:
    """All tables, by heading."""
    tables = {}
    for stages in (2, 4):
        torch = {
            name: Baseline(f"torch {schedule.__name__}", torch_pipeline.train, stages, 1, (name, shape.bounds(stages)))
            for name, schedule in torch_pipeline.SCHEDULES.items()
        }
        tables[f"{stages} stages"] = [
            Duel(Swarm(f"{stages} stages, {schedule}", stages, 1, schedule), torch.get(schedule, torch["1f1b"]))
            for schedule in get_args(ScheduleName)
        ]
    for replicas in (2, 4):
        swarm = Swarm(f"1 stage x {replicas}", 1, replicas, "1f1b")
        tables[f"{replicas} replicas"] = [Duel(swarm, Baseline(f"torch DDP x {replicas}", ddp.train, replicas))]
    loop = Baseline("PyTorch loop, 2 threads", one_process.train, 1, threads_each=2)
    tables["one process"] = [Duel(Solo("solo, 2 threads", 2), loop), Duel(tables["2 stages"][0].ours, loop)]
    return tables


def main() -> None:
    """Run the tables."""
    arguments = _arguments()
    shape = QUICK if arguments.quick else Shape(sequences=arguments.sequences, length=arguments.length)
    tables = comparisons(shape)
    if arguments.only is not None:
        if arguments.only not in tables:
            raise SystemExit(f"--only {arguments.only}: choose one of {', '.join(tables)}")
        tables = {arguments.only: tables[arguments.only]}
    elif arguments.quick:
        tables = {name: duels for name, duels in tables.items() if not name.startswith("4 ")}
    if arguments.out is not None:
        check_writable(arguments.out)
    duels = [duel for table in tables.values() for duel in table]
    contenders = list(dict.fromkeys(who for duel in duels for who in (duel.theirs, duel.ours)))
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        prepare(folder)
        rounds = _race(folder, shape, contenders, arguments.rounds, arguments.steps)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    parts = [_facts(shape, rounds, arguments.steps, time.monotonic() - begun)]
    for name, table in tables.items():
        rows = [_row(duel, rounds, shape) for duel in table]
        show(name, HEADINGS, rows)
        parts.append(markdown(name, HEADINGS, rows))
    keep(arguments.out, "Training steps beside plain PyTorch's", _command(arguments), parts)


def _race(folder: Path, shape: Shape, contenders: Sequence[Contender], rounds: int, steps: int) -> list[Round]:
    """Let the contenders take turns."""
    work = folder / "work"
    work.mkdir()
    (work / "job.toml").write_text(shape.job("1f1b"), encoding="utf-8")
    resolve(work / "job.toml", work)
    course = Course(shape, WARM_UP + steps, work)
    found: list[Round] = []
    reference: Run | None = None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=rounds * len(contenders))
        for number in range(1, rounds + 1):
            found.append({})
            for index, who in enumerate(contenders):
                progress.update(task, description=f"round {number} of {rounds}: {who.name}")
                run = _time(who, course, folder / f"{number}-{index}")
                reference = reference or run
                _compare(who, run, reference)
                found[-1][who] = run
                progress.console.print(f"{who.name}: {run.seconds:.2f} s, CPU {_cpu(who, [run])}")
                progress.advance(task)
    return found


def _time(who: Contender, course: Course, folder: Path) -> Run:
    """One contender's run.

    Raises:
        SystemExit: it fails, stalls, or says of its steps what the clock does not.
    """
    folder.mkdir()
    try:
        with Team.running(folder) as team:
            path = who.start(team, course)
            _await_rows(who, team, path, WARM_UP)
            before = team.cpu()
            rows = _await_rows(who, team, path, course.steps)
            after = team.cpu()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = [float(row["seconds"]) for row in rows[WARM_UP : course.steps]]
    wall = after.at - before.at
    if wall > 1.15 * sum(seconds) + REPORT_SECONDS:
        raise SystemExit(f"{who.name}: its rows add up to {sum(seconds):.1f} s, for steps that took {wall:.1f} s")
    step = statistics.median(seconds)
    taken = {role: spent - before.seconds.get(role, 0.0) for role, spent in after.seconds.items()}
    return Run(
        losses=[float(row["loss"]) for row in rows[:COMPARED]],
        seconds=step,
        cpu={role: spent / wall * step for role, spent in taken.items()},  # rows come late, but at a steady pace
        others=max(0.0, after.machine - before.machine - sum(taken.values())) / wall,
    )


def _await_rows(who: Contender, team: Team, path: Path, count: int) -> list[dict[str, Any]]:
    """The rows, once there are `count`.

    Raises:
        SystemExit: a process has failed, or there was no new row for long.
    """
    seen, since = 0, time.monotonic()
    while len(rows := _rows(path)) < count:
        if len(rows) > seen:
            seen, since = len(rows), time.monotonic()
        try:
            team.check()
            if time.monotonic() - since > STALLED_SECONDS:
                raise SystemExit(f"no step for {STALLED_SECONDS:.0f} s:\n{team.last_words()}")
        except SystemExit as error:
            raise SystemExit(f"{who.name} failed: {error}") from None
        time.sleep(0.05)
    return rows


def _rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of rows."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _compare(who: Contender, run: Run, reference: Run) -> None:
    """Make sure that the same work was done.

    Raises:
        SystemExit: losses differ.
    """
    if any(abs(mine / other - 1.0) > TOLERANCE for mine, other in zip(run.losses, reference.losses, strict=True)):
        raise SystemExit(f"{who.name} does other work: its first losses are {run.losses}, not {reference.losses}")


def _row(duel: Duel, rounds: list[Round], shape: Shape) -> tuple[str, ...]:
    """A duel's line of its table."""
    ours, theirs = ([turn[who] for turn in rounds] for who in (duel.ours, duel.theirs))
    ratios = [other.seconds / mine.seconds for mine, other in zip(ours, theirs, strict=True)]
    return (
        duel.ours.name,
        _rate(ours, shape),
        duel.theirs.name,
        _rate(theirs, shape),
        f"{statistics.median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
        _cpu(duel.ours, ours),
        _cpu(duel.theirs, theirs),
    )


def _rate(runs: list[Run], shape: Shape) -> str:
    return f"{statistics.median(shape.tokens / run.seconds for run in runs):,.0f}"


def _cpu(who: Contender, runs: list[Run]) -> str:
    """Processor seconds of a step out of those that its threads could have had; then of what serves them."""
    roles = {role: statistics.median(run.cpu[role] for run in runs) for role in runs[0].cpu}
    beside = {role: roles.pop(role) for role in ("daemons", "coordinator") if role in roles}
    cores = min(who.threads, os.cpu_count() or 1)
    compute = f"{sum(roles.values()):.2f} of {cores} x {statistics.median(run.seconds for run in runs):.2f} s"
    return "; ".join([compute, *(f"{role} {seconds:.2f} s" for role, seconds in beside.items())])


def _facts(shape: Shape, rounds: list[Round], steps: int, seconds: float) -> str:
    """What was measured, on what."""
    others = [run.others for turn in rounds for run in turn.values()]
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), torch {version('torch')}, Python {platform.python_version()}. "
        f"Llama of {shape.layers} layers, {shape.width} wide, fp32; {shape.micro_batches} micro-batches of "
        f"{shape.sequences} x {shape.length} tokens a step. Medians over {len(rounds)} rounds of {steps} steps, after "
        f"{WARM_UP} that are not timed; {seconds / 60:.0f} minutes in all. Other processes of this machine took "
        f"{statistics.median(others):.1f} cores meanwhile (at most {max(others):.1f}).\n"
    )


def _command(arguments: argparse.Namespace) -> str:
    """The command that gives the same file."""
    parts = ["python -m benchmarks.pipelines"]
    for name, standard in (("only", None), ("rounds", 3), ("steps", 2), ("sequences", 1), ("length", 128)):
        value = getattr(arguments, name)
        if value != standard:
            parts.append(f"--{name} '{value}'" if isinstance(value, str) else f"--{name} {value}")
    return " ".join([*parts, *(["--quick"] if arguments.quick else [])])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TABLE", help="one table, by its heading")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="timed in each run")
    parser.add_argument("--sequences", type=int, default=1, help="of a micro-batch")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--quick", action="store_true", help="smaller model, one round, nothing of four processes")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    return arguments


if __name__ == "__main__":
    main()
