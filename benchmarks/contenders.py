"""Who is timed by `benchmarks/pipelines.py`: swarms and `solo` of this project, and baselines of plain PyTorch."""

import itertools
import json
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.baselines.work import Rank
from benchmarks.processes import Team, command

INVITE_SECONDS = 120.0
"""The first coordinator on a machine compiles the allocator."""

JOB = """
name = "pipelines"
[model]
architecture = "llama"
hidden_size = {width}
intermediate_size = {intermediate}
num_hidden_layers = {layers}
num_attention_heads = 8
num_key_value_heads = 8
tie_word_embeddings = false
[data]
text = "cpython"
tokenizer = "bytes"
[training]
steps = 1000
global_batch = {global_batch}
micro_batch = {sequences}
sequence_length = {length}
learning_rate = 1e-3
[plan]
schedule = "{schedule}"
wire = "fp32"
[evaluation]
every = 0
[checkpoint]
every = 0
"""
"""Runs end when enough steps are timed, long before the last one and its checkpoint."""


@dataclass(frozen=True)
class Shape:
    """Of the model and of a step."""

    width: int = 512
    intermediate: int = 1408
    layers: int = 8
    micro_batches: int = 8
    sequences: int = 1
    """A micro-batch."""
    length: int = 128

    @property
    def tokens(self) -> int:
        """A step."""
        return self.micro_batches * self.sequences * self.length

    def job(self, schedule: str) -> str:
        """The job file."""
        return JOB.format(
            width=self.width,
            intermediate=self.intermediate,
            layers=self.layers,
            global_batch=self.micro_batches * self.sequences,
            sequences=self.sequences,
            length=self.length,
            schedule=schedule,
        )

    def bounds(self, stages: int) -> tuple[int, ...]:
        """The first layers of all stages, and the number of layers."""
        return tuple(stage * self.layers // stages for stage in range(stages + 1))


@dataclass(frozen=True)
class Course:
    """What every contender of one run of the benchmark trains."""

    shape: Shape
    steps: int
    """How many are run, those before the timing included."""
    work: Path
    """Tokens and the model's config, for baselines."""


class Contender(Protocol):
    """Something that trains, and writes a row for every step."""

    @property
    def name(self) -> str:
        """For tables."""

    @property
    def threads(self) -> int:
        """That compute, over all processes."""

    def start(self, team: Team, course: Course) -> Path:
        """Start its processes; the file of its rows."""


@dataclass(frozen=True)
class Baseline:
    """Processes of plain PyTorch; rank and steps come first among the arguments of `train`."""

    name: str
    train: Callable[..., None]
    processes: int
    threads_each: int = 1
    arguments: tuple[object, ...] = ()

    @property
    def threads(self) -> int:
        """That compute."""
        return self.processes * self.threads_each

    def start(self, team: Team, course: Course) -> Path:
        """See `Contender.start`."""
        for number in range(self.processes):
            rank = Rank(number, self.processes, self.threads_each, team.folder, course.work)
            team.start("rank", self.train, rank, course.steps, *self.arguments)
        return team.folder / "metrics.jsonl"


@dataclass(frozen=True)
class Swarm:
    """A coordinator and nodes of one thread each, under a forced plan."""

    name: str
    stages: int
    replicas: int
    schedule: str

    @property
    def threads(self) -> int:
        """That compute."""
        return self.stages * self.replicas

    def start(self, team: Team, course: Course) -> Path:
        """See `Contender.start`."""
        folder, shape = team.folder, course.shape
        job, plan, state = folder / "job.toml", folder / "plan.json", folder / "swarm"
        job.write_text(shape.job(self.schedule), encoding="utf-8")
        plan.write_text(json.dumps(self._plan(shape)), encoding="utf-8")
        count = self.stages * self.replicas
        serve = ("serve", job, "--state-dir", state, "--listen", "127.0.0.1", "--port", 0)
        forced = ("--plan", plan, "--min-nodes", count)
        team.start("coordinator", command, "dtfm-coordinator", *serve, *forced, started="coordinator")
        self._await_invite(team, state / "invite")
        for number in range(count):
            join = ("join", "--yes", f"@{state / 'invite'}", "--state-dir", folder / f"node-{number}")
            own = ("--device", "cpu", "--threads", 1)
            team.start("nodes", command, "dtfm-node", *join, *own, started="daemons")
        return state / "metrics.jsonl"

    def _plan(self, shape: Shape) -> dict[str, object]:
        """Even stages; micro-batches go round the replicas."""
        peers = iter(string.ascii_lowercase)
        holders = [[next(peers) for _ in range(self.replicas)] for _ in range(self.stages)]
        routes = [[stage[index % self.replicas] for stage in holders] for index in range(shape.micro_batches)]
        return {"stages": list(itertools.pairwise(shape.bounds(self.stages))), "routes": routes}

    @staticmethod
    def _await_invite(team: Team, invite: Path) -> None:
        deadline = time.monotonic() + INVITE_SECONDS
        while not invite.exists():
            team.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"the coordinator does not start:\n{team.last_words()}")
            time.sleep(0.05)


@dataclass(frozen=True)
class Solo:
    """`dtfm-node solo`."""

    name: str
    threads: int

    def start(self, team: Team, course: Course) -> Path:
        """See `Contender.start`."""
        job, state = team.folder / "job.toml", team.folder / "solo"
        job.write_text(course.shape.job("1f1b"), encoding="utf-8")
        solo = ("solo", job, "--state-dir", state, "--device", "cpu", "--threads", self.threads)
        team.start("node", command, "dtfm-node", *solo)
        return state / "metrics.jsonl"
