"""What one `kill -9` costs elsewhere: in torchft, in a DDP job that is started again from a checkpoint, and here.

    python3 -m venv tft
    tft/bin/pip install --no-deps torchft==0.2.0
    tft/bin/pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
    python -m benchmarks.chaos.baselines [--kills 5] [--torchft-python tft/bin/python]
        [--out benchmarks/results/chaos_baselines.md]

Everyone trains the model and the tokens of `tests.harness.jobs.SMALL` with two processes over loopback, each holding
the whole model. One of them is killed at any instant, and started again at once: its new process has to import PyTorch
first. Only torchft itself comes from the other interpreter; PyTorch and the model are this one's.

`restart`  `DistributedDataParallel` over gloo; rank 0 writes a checkpoint every 10 steps. Nobody has to notice the
           death: the other rank is killed in the same instant, and both are started from the newest checkpoint.
`torchft`  a lighthouse with the README's settings, two replica groups of one process; gradients averaged by its
           DistributedDataParallel, and by a call of `Manager.allreduce`. A survivor that dies, too, is started again.
`dtfm`     a coordinator and nodes of one stage, with and without a spare.
"""

import argparse
import asyncio
import itertools
import json
import math
import multiprocessing
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tests.harness.jobs import SMALL
from tests.harness.swarm import Swarm
from torch.nn.parallel import DistributedDataParallel

import dtfm_coordinator
import dtfm_node
import dtfm_protocol
from benchmarks.baselines.work import Rank, Work, gradients_of, meet, resolve, sum_of_squares
from benchmarks.chaos.cases import killed
from benchmarks.tables import keep, markdown, show
from dtfm_protocol.model.initial_weights import initialise
from dtfm_protocol.model.stage import build_stage, loss_sum

HEADINGS = [
    "what",
    "kills",
    "s to a new step",
    "most",
    "steps run again",
    "most",
    "s until two train",
    "most",
    "ms/step",
]
PROCESSES = 2
STEPS = 100_000
CHECKPOINT_STEPS = 10
CALM_STEPS = 20
"""Before the first kill."""
CALM_SECONDS = (1.0, 3.0)
"""Before each kill."""
WAIT_SECONDS = 240.0
WHOLE_SECONDS = 60.0
LOG_LINES = 40
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cost:
    """Of one kill."""

    seconds: float
    """Until a step was done that had not been before."""
    again: int
    """Steps that had been done, and were run again."""
    whole: float
    """Seconds until a step was done to which two processes contributed again; infinite where that did not come."""
    alone: int = 0
    """torchft: steps to which one replica alone contributed, of half the batch."""
    thrown: int = 0
    """torchft: attempts at a step that the survivor threw away."""
    deaths: int = 0
    """torchft: survivors that died, too."""


@dataclass(frozen=True)
class Result:
    """Of one contender."""

    name: str
    costs: list[Cost]
    step_seconds: float
    """Undisturbed."""

    def row(self) -> list[str]:
        """For the table."""
        seconds, again = [cost.seconds for cost in self.costs], [cost.again for cost in self.costs]
        whole = [cost.whole for cost in self.costs]
        return [
            self.name, str(len(self.costs)), f"{median(seconds):.1f}", f"{max(seconds):.1f}", f"{median(again):g}",
            str(max(again)), _said(median(whole)), _said(max(whole)), f"{self.step_seconds * 1e3:.0f}",
        ]  # fmt: skip


def _said(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < math.inf else f"> {WHOLE_SECONDS:.0f}"


def _until(condition: Callable[[], Any], what: str) -> Any:
    """What the condition tells once it is something."""
    end = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"waited {WAIT_SECONDS:.0f} s in vain until {what}")
        time.sleep(0.01)
    return found


def _has_steps(rows: Path, steps: int) -> bool:
    return len(_read(rows)) >= steps


def _has_come_to(swarm: Swarm, step: int) -> bool:
    return swarm.step >= step


def _read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _pace(ended: list[float]) -> float:
    """Median seconds between moments."""
    return median(after - before for before, after in itertools.pairwise(ended))


def _train(rank: Rank, checkpoint: Path) -> None:
    """A rank of the DDP job, from the newest checkpoint on, until it is killed."""
    work = Work(rank)
    config, training = work.job.config, work.training
    module = build_stage(config, 0, config["num_hidden_layers"], torch.device("cpu"))
    parameters = module.named_state()
    initialise(parameters, config, training.seed)
    optimizer = work.optimizer(parameters)
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        step = state["step"]
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    meet(rank)
    model = DistributedDataParallel(module, gradient_as_bucket_view=True, broadcast_buffers=False)
    mine = range(rank.number, training.micro_batches, rank.count)
    share = training.tokens * len(mine) / training.micro_batches
    with (rank.folder / f"rows-{rank.number}").open("a", encoding="utf-8") as rows:
        while True:
            step += 1
            inputs, targets = work.batch(step, mine)
            (loss_sum(model(inputs), targets) / share).backward()
            gradients = gradients_of(parameters.values())
            work.update(optimizer, step, gradients, math.sqrt(sum_of_squares(gradients)))
            rows.write(json.dumps({"step": step, "ended": time.time()}) + "\n")
            rows.flush()
            if rank.number == 0 and step % CHECKPOINT_STEPS == 0:
                new = checkpoint.with_suffix(".new")
                torch.save({"step": step, "model": module.state_dict(), "optimizer": optimizer.state_dict()}, new)
                new.replace(checkpoint)


def restarts(work: Path, folder: Path, kills: int, chance: random.Random) -> Result:
    """The plain restart."""
    ranks: list[SpawnProcess] = []
    checkpoint, costs, paces = folder / "checkpoint.pt", list[Cost](), list[float]()

    def start(attempt: int) -> Path:
        home = folder / f"attempt-{attempt}"
        home.mkdir()
        for number in range(PROCESSES):
            arguments = (Rank(number, PROCESSES, 1, home, work), checkpoint)
            ranks.append(multiprocessing.get_context("spawn").Process(target=_train, args=arguments, daemon=True))
            ranks[-1].start()
        return home / "rows-0"

    rows = start(0)
    try:
        for attempt in range(1, kills + 1):
            _until(partial(_has_steps, rows, CALM_STEPS), "DDP trains")
            time.sleep(chance.uniform(*CALM_SECONDS))
            at = time.time()
            while ranks:
                ranks.pop(chance.randrange(len(ranks))).kill()
            before = _read(rows)
            reached = before[-1]["step"]
            paces.append(_pace([row["ended"] for row in before]))
            rows = start(attempt)

            def new(rows: Path = rows, reached: int = reached) -> list[dict[str, Any]]:
                return [row for row in _read(rows) if row["step"] > reached]

            first = _until(new, "there is a new step")[0]
            seconds = first["ended"] - at
            costs.append(Cost(seconds, reached + 1 - _read(rows)[0]["step"], seconds))
            print("restart", costs[-1], flush=True)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    return Result(f"DDP, started again, checkpoint every {CHECKPOINT_STEPS} steps", costs, median(paces))


class Torchft:
    """Two replicas and their lighthouse."""

    def __init__(self, python: Path, work: Path, folder: Path, average: str) -> None:
        self._python, self._work, self._folder, self._average = python, work, folder, average
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Torchft":
        address = self._folder / "lighthouse"
        self._start("serving", "lighthouse", address)
        self._address = _until(
            lambda: address.exists() and address.read_text(encoding="ascii"), "there is a lighthouse"
        )
        for number in range(PROCESSES):
            self.start(number)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for log in sorted(self._folder.glob("*.log")):
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
                print(f"--- {log.stem}", *lines, sep="\n", flush=True)
        for process in self._running.values():
            process.kill()
            process.wait()

    def start(self, number: int) -> None:
        """A replica, for the first time or again."""
        self._start(
            f"replica-{number}", "replica", number, self._address, self._work, self._path(number), self._average
        )

    def kill(self, number: int) -> None:
        """End a replica."""
        self._running[f"replica-{number}"].kill()
        self._running[f"replica-{number}"].wait()

    def died(self, number: int) -> bool:
        """Whether a replica has ended by itself."""
        return self._running[f"replica-{number}"].poll() is not None

    def rows(self, number: int) -> list[dict[str, Any]]:
        """All attempts of a replica at a step that it has contributed to or thrown away."""
        return _read(self._path(number))

    def _path(self, number: int) -> Path:
        return self._folder / f"rows-{number}"

    def _start(self, name: str, *arguments: object) -> None:
        command = [str(self._python), "-m", "benchmarks.chaos.torchft_worker", *map(str, arguments)]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | _environment()
            )


def _environment() -> dict[str, str]:
    """With what another interpreter finds this project and what it needs."""
    packages = [Path(package.__path__[0]).parent for package in (dtfm_protocol, dtfm_node, dtfm_coordinator)]
    path = dict.fromkeys(map(str, [ROOT, *packages, Path(torch.__path__[0]).parent]))
    return {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def fault_tolerant(python: Path, work: Path, average: str, kills: int, chance: random.Random) -> Result:
    """torchft."""
    costs, paces = list[Cost](), list[float]()
    with _place() as folder, Torchft(python, work, folder, average) as team:
        for _ in range(kills):

            def calm() -> bool:
                last = [team.rows(number)[-CALM_STEPS:] for number in range(PROCESSES)]
                return all(len(rows) == CALM_STEPS and all(map(_both, rows)) for rows in last)

            _until(calm, "two replicas train")
            time.sleep(chance.uniform(*CALM_SECONDS))
            victim = chance.randrange(PROCESSES)
            paces.append(_pace([row["ended"] for row in team.rows(1 - victim)[-CALM_STEPS:]]))
            costs.append(_kill(team, victim))
            print(f"torchft {average}", costs[-1], flush=True)
    how = {"ddp": "its DistributedDataParallel", "allreduce": "Manager.allreduce"}[average]
    return Result(f"torchft, 2 replica groups, {how}", costs, median(paces))


def _kill(team: Torchft, victim: int) -> Cost:
    """Kill one replica, start it again at once, and follow both."""
    at, deaths = time.time(), 0
    team.kill(victim)
    reached = max(row["step"] for number in range(PROCESSES) for row in team.rows(number))
    team.start(victim)

    def since() -> list[dict[str, Any]]:
        """Steps that were committed and had begun after the kill, by any replica, in order."""
        rows = [row for number in range(PROCESSES) for row in team.rows(number)]
        return sorted((row for row in rows if row["began"] > at and row["committed"]), key=lambda row: row["ended"])

    def done() -> bool:
        nonlocal deaths
        for number in range(PROCESSES):
            if team.died(number):
                deaths += 1
                team.start(number)
        returned = any(row["began"] > at and _both(row) for row in team.rows(victim))
        return returned and any(row["step"] > reached for row in since())

    _until(done, "there is a new step, and two replicas train")
    new = next(row["ended"] for row in since() if row["step"] > reached)
    whole = next(row["ended"] for row in team.rows(victim) if row["began"] > at and _both(row))
    return Cost(
        new - at,
        len({row["step"] for row in since() if row["step"] <= reached}),
        whole - at,
        len({row["step"] for row in since() if row["replicas"] < PROCESSES and row["ended"] < whole}),
        sum(not row["committed"] and row["ended"] > at for row in team.rows(1 - victim)),
        deaths,
    )


def _both(row: dict[str, Any]) -> bool:
    return bool(row["committed"] and row["takes_part"] and row["replicas"] == PROCESSES)


async def here(kills: int, spares: int, chance: random.Random) -> Result:
    """This project; without a spare the allocator plans for one node, then for two, with one the layout is forced."""
    costs, paces = list[Cost](), list[float]()
    while len(costs) < kills:
        async with Swarm.running() as swarm:
            await _begin(swarm, spares)
            case = killed(0, "one of two")
            while len(costs) < kills and len(swarm.serving(0)) == PROCESSES:
                first = swarm.step
                await swarm.until(partial(_has_come_to, swarm, first + CALM_STEPS), "training goes on", 90)
                await asyncio.sleep(chance.uniform(*CALM_SECONDS))
                paces += [row["seconds"] for row in swarm.rows()[-CALM_STEPS:]]
                costs.append(await _strike(swarm, case.strike))
                print(f"dtfm, {spares} spares", costs[-1], *(event.why for event in swarm.events()[1:]), flush=True)
                if costs[-1].whole == math.inf:  # it would be the only one that is killed next
                    break
    return Result(f"dtfm, 1 stage x 2 peers, {spares or 'no'} spare", costs, median(paces))


async def _begin(swarm: Swarm, spares: int) -> None:
    """Have two nodes train."""
    job = swarm.job(STEPS)
    arguments: list[object] = ["--min-nodes", PROCESSES + spares]
    if spares:
        arguments += ["--plan", swarm.plan([[0, 4]], ["a", "b"] * 4)]
    else:
        job.write_text(job.read_text(encoding="utf-8") + "[plan]\nstages = 1\n", encoding="utf-8")
    await swarm.serve(job, *arguments)
    for _ in range(PROCESSES + spares):
        await swarm.join()
    await swarm.until(lambda: swarm.step >= CALM_STEPS, "the first steps are done", 180)
    if len(swarm.serving(0)) != PROCESSES:
        raise SystemExit(f"the allocator has planned {swarm.layout()['routes']}")


async def _strike(swarm: Swarm, strike: Callable[[Swarm], Any]) -> Cost:
    """As a case of `campaign.py`, but who is killed starts at once."""
    before, at_first = len(swarm.events()), swarm.step
    hit = await strike(swarm)
    for victim in hit.victims:
        await victim.start()
    await swarm.until(lambda: len(swarm.events()) > before, "a plan follows", 90)

    def goes_on() -> bool:
        reached = max([at_first, *(event.step + event.repeated for event in swarm.events()[before:])])
        return swarm.step > reached

    def whole() -> bool:
        event, layout = swarm.events()[-1], swarm.layout()
        two = len({peer for route in layout["routes"] for peer in route}) == PROCESSES
        return two and event.plan == layout["version"] and goes_on()

    await swarm.until(goes_on, "there is a new step", 90)
    seconds = time.time() - hit.at
    end, full = time.monotonic() + WHOLE_SECONDS, math.inf
    while full == math.inf and time.monotonic() < end:
        await asyncio.sleep(0.02)
        if whole():
            full = time.time() - hit.at
    returning = [swarm.peer_of(victim) for victim in hit.victims]
    await swarm.until(
        lambda: all(swarm.statuses().get(peer) in {"idle", "training"} for peer in returning), "who was hit is back", 90
    )
    events = swarm.events()[before:]
    return Cost(seconds, sum(event.repeated for event in events), full)


def _lacks(python: Path | None) -> str:
    """Why torchft is left out."""
    if python is None:
        return "no --torchft-python"
    command = [str(python), "-c", "import torchft"]
    try:
        result = subprocess.run(command, env=os.environ | _environment(), capture_output=True, text=True, check=False)
    except OSError as error:
        return f"--torchft-python: {error.strerror}"
    return f"it cannot be imported: {result.stderr.strip().splitlines()[-1]}" if result.returncode else ""


@contextmanager
def _place() -> Iterator[Path]:
    """A folder, whose processes have ended when it is removed."""
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def main() -> None:
    """Kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--torchft-python", type=Path, metavar="PATH", help="an interpreter that has torchft")
    parser.add_argument("--only", choices=["restart", "torchft", "dtfm"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    os.environ["OMP_NUM_THREADS"] = "1"
    chance, kills, only = random.Random(arguments.seed), arguments.kills, arguments.only
    results, notes = [], []
    with ExitStack() as stack:
        work = stack.enter_context(_place())
        job = work / "job.toml"
        job.write_text(SMALL.job(STEPS), encoding="utf-8")
        resolve(job, work)
        if only in (None, "restart"):
            results.append(restarts(work, stack.enter_context(_place()), kills, chance))
        if only in (None, "torchft"):
            if lacks := _lacks(arguments.torchft_python):
                notes.append(f"torchft is left out: {lacks}.")
                print(notes[-1], flush=True)
            else:
                for average in ("ddp", "allreduce"):
                    result = fault_tolerant(arguments.torchft_python, work, average, kills, chance)
                    results.append(result)
                    costs = result.costs
                    alone, thrown = median(cost.alone for cost in costs), median(cost.thrown for cost in costs)
                    notes.append(
                        f"{result.name}: the survivor died, too, {sum(cost.deaths for cost in costs)} times, and with "
                        f"both all state is lost, as there is no checkpoint. Medians: {alone:g} steps of half the "
                        f"batch until two trained, {thrown:g} attempts at a step thrown away."
                    )
    if only in (None, "dtfm"):
        results += [asyncio.run(here(kills, spares, chance)) for spares in (0, 1)]
    rows = [result.row() for result in results]
    title = "What one kill -9 costs"
    show(title, HEADINGS, rows)
    print(*notes, sep="\n")
    notes += [
        "Seconds are medians, and the most. The restarted job needs nobody to notice the death, which flatters it; a "
        "swarm's peers tell the coordinator once a second of their steps, which adds up to that to its figures.",
        f"Two processes of one thread on {os.cpu_count()} cores; a new process spends most of its time on imports.",
    ]
    options = [
        f"--{name} {value}" for name, value in (("only", only), ("kills", kills), ("seed", arguments.seed)) if value
    ]
    if arguments.torchft_python is not None:
        options.append("--torchft-python " + shlex.quote(Path(*arguments.torchft_python.parts[-3:]).as_posix()))
    command = f"python -m benchmarks.chaos.baselines {' '.join(options)}"
    keep(arguments.out, "Faults beside others'", command, [markdown(title, HEADINGS, rows), "\n\n".join(notes) + "\n"])


if __name__ == "__main__":
    main()
