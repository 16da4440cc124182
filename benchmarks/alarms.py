"""How near honest peers come to an alarm, and what an attacker can do below it.

`python -m benchmarks.alarms --out FILE`. Peers of one plan run the real engine in one process, over streams in memory,
on small models and few tokens a peer: gradients then differ more than those of larger batches. Text is the prose of
Python's manual; in "odd" text, sixty stretches of it are noise, or one byte again and again.
"""

import argparse
import asyncio
import contextlib
import pydoc_data.topics
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from tests.harness.named_peers import signer_of

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_node.engine.allreduce import AllReduce, sum_of_parts
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.host_copies import HostCopies
from dtfm_node.engine.lone_stage_alarm import LoneStageAlarm
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.part_alarm import PartAlarm, PartsSeen, Strain, compare_parts
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.step_evidence import StepEvidence
from dtfm_node.engine.trainer import Trainer
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Model, Planning, Training
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import BUCKET_BYTES
from dtfm_protocol.process import command_line
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream, read_message

CPU = torch.device("cpu")
VOCAB, LAYERS, HIDDEN = 256, 4, 48
TEXT_BYTES, ODD_STRETCHES = 400_000, 60
WARM_UP = 20
LIAR, BEGINS, LIES = "b", 40, 110
"""Who lies, from the step after which, and for how many steps at most."""
TAIL = 1e-3
"""Largest part of the figures by which the tail beyond them is judged (Hill's estimator)."""
RARE = 1e-6
"""Chance of a part for which bounds are asked."""


@dataclass(frozen=True)
class Setting:
    """A plan and a batch. Routes have one letter for each stage."""

    name: str
    routes: str
    micro_batch: int
    length: int
    wire: str = "fp32"
    tied: bool = False

    def plan(self) -> Plan:
        """Return the plan; layers are divided evenly."""
        routes = tuple(tuple(route) for route in self.routes.split())
        each = LAYERS // len(routes[0])
        stages = tuple((first, first + each) for first in range(0, LAYERS, each))
        return Plan.model_validate({"version": 1, "stages": stages, "routes": routes, "wire": {"gradients": self.wire}})

    def job(self, folder: Path, seed: int, steps: int, *, odd: bool) -> ResolvedJob:
        """Return a job of it on text that lies in `folder`."""
        fields = {"hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": LAYERS}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": self.tied}
        config = resolve_config(Model.model_validate({"architecture": "llama", **fields, **heads}), VOCAB, self.length)
        anatomy(config)
        return ResolvedJob(
            name="alarms",
            config=config,
            corpus=write_shards(folder / "tokens", [text(seed, odd=odd)], VOCAB),
            training=Training(
                steps=steps,
                global_batch=self.micro_batch * len(self.routes.split()),
                micro_batch=self.micro_batch,
                sequence_length=self.length,
                learning_rate=3e-3,
                warmup_steps=WARM_UP,
                seed=seed,
            ),
            evaluation=Evaluation(),
            plan=Planning(),
            checkpoint=Checkpointing(),
        )


SETTINGS = (
    Setting("2 replicas", "a b a b", 4, 32),
    Setting("4 replicas", "a b c d", 2, 32),
    Setting("4 replicas, int8", "a b c d", 2, 32, wire="int8"),
    Setting("4 replicas, 8 tokens each", "a b c d", 1, 8),
    Setting("4 replicas, 1,024 tokens each", "a b c d", 8, 128),
    Setting("8 replicas, tied", "a b c d e f g h", 2, 32, tied=True),
    Setting("shares 5 : 2 : 1, int8", "a a a a a b b c", 2, 16, wire="int8"),
    Setting("2 stages x 3 + 2, tied", "ax bx cy ay bx cy", 2, 32, tied=True),
    Setting("4 lone stages", "abcd abcd", 2, 32),
)
ATTACKED = (SETTINGS[0], SETTINGS[2], SETTINGS[4])

Lie = Callable[[torch.Tensor], object]


def noise(gradient: torch.Tensor) -> None:
    """Replace a gradient by noise of the same norm."""
    norm = gradient.norm()
    gradient.normal_()
    gradient.mul_(norm / gradient.norm())


def times(factor: float) -> Lie:
    """Return the lie that multiplies a gradient."""
    return lambda gradient: gradient.mul_(factor)


LIARS: dict[str, Lie] = {
    **{f"x {factor:,g}": times(factor) for factor in (10, 30, 100, 300, 1000, 10_000)},
    "x 0.01": times(0.01),
    "zeros": times(0.0),
    "opposite sign": times(-1.0),
    "opposite sign, x 3": times(-3.0),
    "noise of the same norm": noise,
}


def text(seed: int, *, odd: bool) -> npt.NDArray[np.int64]:
    """Return the training text as bytes, shape [TEXT_BYTES]."""
    prose = "".join(pydoc_data.topics.topics.values()).encode()
    found = np.frombuffer(prose, dtype=np.uint8).astype(np.int64)[:TEXT_BYTES].copy()
    draw = np.random.default_rng(seed)
    for _ in range(ODD_STRETCHES if odd else 0):
        at, length = int(draw.integers(0, len(found) - 300)), int(draw.integers(30, 300))
        kind = draw.integers(0, 3)
        found[at : at + length] = (
            draw.integers(0, 256, length)
            if kind == 0
            else draw.integers(0, 256)
            if kind == 1
            else draw.integers(128, 256, length)
        )
    return found


@dataclass
class Found:
    """What a run has shown."""

    strains: dict[str, list[Strain]] = field(default_factory=lambda: defaultdict(list))
    """How near to an alarm parts ("part"), sums of parts ("sum") and votes ("vote") came."""
    refused: dict[str, int] = field(default_factory=dict)
    """Step under way at who refused somebody, by whom it refused."""
    step: int = 0
    """Newest step that anybody began."""


@contextlib.contextmanager
def watching(found: Found) -> Iterator[None]:
    """Have trainers' alarms note what they see in `found`."""

    class Watching(PartAlarm):
        def judge(self, bucket: Bucket, index: int, step: int, seen: PartsSeen) -> dict[str, Strain]:
            strains = super().judge(bucket, index, step, seen)
            kind = "part" if bucket.holders[index] == self._me else "sum"
            found.strains[kind] += strains.values()
            return strains

    class WatchingVotes(LoneStageAlarm):
        def judge(self, step: int, squares: Any, targets: int = 1) -> dict[str, Strain]:
            strains = super().judge(step, squares, targets)
            found.strains["vote"] += strains.values()
            return strains

    with (
        mock.patch("dtfm_node.engine.trainer.PartAlarm", Watching),
        mock.patch("dtfm_node.engine.balloting.LoneStageAlarm", WatchingVotes),
    ):
        yield


class Member:
    """A peer of the plan, from its first state on."""

    def __init__(self, network: MemoryNetwork, folder: Path, job: ResolvedJob, plan: Plan, me: str) -> None:
        self._plane, self._job, self._plan, self._me = MemoryDataPlane(network, me), job, plan, me
        self._evidence = StepEvidence(signer_of(me), self._plane)
        self._corpus = CorpusReader(job.corpus, ShardFolder(folder / "tokens"))
        self._machine = Runtime(CPU, _inline, _inline, HostCopies(CPU))
        self._exchange: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()

    async def _answer(self, stream: Stream) -> None:
        pulses = (await read_message(stream, Hello)).pulses
        exchange = await self._exchange
        await (exchange.take_pulses(stream) if pulses else exchange.serve(stream))

    async def listen(self) -> None:
        """Take the other peers' streams."""
        await self._plane.serve(TRAINING, self._answer)
        await self._evidence.listen()

    async def train(self, steps: int, together: asyncio.Barrier, found: Found) -> None:
        """Train up to `steps`, or until somebody is refused."""
        async with Exchange.running(self._plane, 1, self._plan.peers) as exchange:
            state = TrainingStage(self._job.config, self._plan, self._me, self._job.training, CPU)
            state.initialise()
            corpus, evidence = self._corpus, self._evidence
            trainer = Trainer(self._job, self._plan, self._me, state, corpus, exchange, self._machine, evidence)
            trainer.expect_first()
            self._exchange.set_result(exchange)
            await trainer.start()
            try:
                for step in range(1, steps + 1):
                    found.step = step
                    await trainer.step(step, _nothing)
                await together.wait()
            finally:
                for lost in exchange.lost.values():
                    if lost.refused:
                        found.refused.setdefault(lost.peer, found.step)


async def _inline(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


async def _nothing(step: int) -> None:
    """Tokens are here."""


async def train(setting: Setting, seed: int, steps: int, *, odd: bool = False, lie: Lie | None = None) -> Found:
    """Train `setting` with all peers honest, or with one that lies of its gradients after step `BEGINS`."""
    found = Found()

    class Lying(AllReduce):
        async def run(self, bucket: Bucket, step: int, gradient: torch.Tensor) -> float:
            if lie is not None and self._me == LIAR and step > BEGINS:
                lie(gradient)
            return await super().run(bucket, step, gradient)

        async def _check_parts(
            self, bucket: Bucket, index: int, step: int, own: torch.Tensor, sent: dict[str, torch.Tensor]
        ) -> None:
            if lie is None or self._me != LIAR or step <= BEGINS:  # it accuses nobody
                await super()._check_parts(bucket, index, step, own, sent)

    with (
        tempfile.TemporaryDirectory() as name,
        watching(found),
        mock.patch("dtfm_node.engine.trainer.AllReduce", Lying),
    ):
        folder, network, plan = Path(name), MemoryNetwork(), setting.plan()
        job, together = setting.job(folder, seed, steps, odd=odd), asyncio.Barrier(len(plan.peers))
        members = [Member(network, folder, job, plan, peer) for peer in plan.peers]
        for member in members:
            await member.listen()
        tasks = [asyncio.create_task(member.train(steps, together, found)) for member in members]
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    unexpected = [error for end in ends if end is not None for error in _leaves(end) if not isinstance(error, PeerLost)]
    if unexpected:
        raise unexpected[0]
    assert lie is not None or not any(ends), f"an honest run ended: {ends}"
    return found


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def rare(values: npt.NDArray[np.float64]) -> float:
    """Return the figure that one in `1 / RARE` is beyond, by Hill's estimate of the tail of those that were seen."""
    ordered = np.sort(values)[::-1]
    count = max(20, int(TAIL * len(ordered)))
    if len(ordered) <= count or ordered[count] <= 0:
        return float("nan")
    exponent = float(np.mean(np.log(ordered[:count] / ordered[count])))
    return float(ordered[count] * (count / len(ordered) / RARE) ** exponent)


HONEST_HEADINGS = (
    "peers",
    "what",
    "number",
    "figure",
    "median",
    "1 in 10,000",
    "largest",
    "1 in 1,000,000 (estimated)",
)
FIGURES = {"large": "norm, of the most", "small": "the least, of the norm", "against": "contradiction"}


def honest_rows(name: str, runs: list[Found]) -> list[tuple[str, ...]]:
    """Return rows under `HONEST_HEADINGS` of honest runs."""
    rows = []
    for what, where in (("parts", "part"), ("sums", "sum"), ("votes", "vote")):
        strains = [strain for run in runs for strain in run.strains[where]]
        for figure, words in FIGURES.items():
            values = np.array([getattr(strain, figure) for strain in strains])
            if len(values) == 0 or (what == "votes" and figure == "against"):
                continue
            shown = [float(np.median(values)), float(np.quantile(values, 1 - 1e-4)), float(values.max())]
            # What contradicts is bounded by theory, and has no such tail.
            far = "" if figure == "against" else f"{rare(values):.2g}"
            rows.append((name, what, f"{len(values):,}", words, *(f"{one:.2g}" for one in shown), far))
    return rows


ATTACK_HEADINGS = ("b sends its gradient", *(setting.name for setting in ATTACKED))


def attack_row(name: str, runs: dict[str, list[Found]]) -> tuple[str, ...]:
    """Return a row under `ATTACK_HEADINGS`; `runs` are those of each setting."""
    cells = []
    for found in runs.values():
        seen = [run.refused[LIAR] - BEGINS for run in found if LIAR in run.refused]
        framed = sum(bool(run.refused.keys() - {LIAR}) for run in found)
        cell = f"{len(seen)} of {len(found)}" if seen else "not seen"
        cell += f", after {statistics.median(seen):g}" if seen else ""
        cells.append(cell + (f"; others accused in {framed}" if framed else ""))
    return (name, *cells)


COST_HEADINGS = ("replicas", "summing the part that a peer owns", "looking at all that it is sent")


def cost_row(replicas: int, rounds: int = 15) -> tuple[str, ...]:
    """Return a row under `COST_HEADINGS`: medians for one bucket, on one thread."""
    own = torch.randn(BUCKET_BYTES // 4 // replicas)
    others = [torch.randn_like(own) for _ in range(replicas - 1)]
    named = {str(number): part for number, part in enumerate(others)}
    summing, looking = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        mine = own.clone()
        sum_of_parts(mine, [None, *others], mine)
        middle = time.perf_counter()
        compare_parts(own, named)
        for part in others:  # the sums of the other owners, each beside the own part there
            compare_parts(own, {"owner": part})
        summing.append(middle - begun)
        looking.append(time.perf_counter() - middle)
    return (str(replicas), *(f"{1e3 * statistics.median(times):.1f} ms" for times in (summing, looking)))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="of each honest run")
    parser.add_argument("--seeds", type=int, default=3, help="of each honest run, on plain and on odd text each")
    parser.add_argument("--attack-seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where to keep the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded():
        honest: list[tuple[str, ...]] = []
        everything: list[Found] = []
        for setting in track(SETTINGS, description="honest", console=console, transient=True):
            seeds = [(seed, odd) for seed in range(1, options.seeds + 1) for odd in (False, True)]
            runs = [asyncio.run(train(setting, seed, options.steps, odd=odd)) for seed, odd in seeds]
            honest += honest_rows(setting.name, runs)
            everything += runs
        honest += honest_rows("all", everything)
        title = "Honest peers: how near to an alarm (1 is the bound)"
        show(title, HONEST_HEADINGS, honest)
        attacks = []
        for name, lie in track(LIARS.items(), description="attacks", console=console, transient=True):
            seeds_of = range(1, options.attack_seeds + 1)
            found = {
                setting.name: [asyncio.run(train(setting, seed, BEGINS + LIES, lie=lie)) for seed in seeds_of]
                for setting in ATTACKED
            }
            attacks.append(attack_row(name, found))
        second = f"One attacker, from step {BEGINS + 1} on: in how many runs it is named, and after how many steps"
        show(second, ATTACK_HEADINGS, attacks)
        third = "Time for one bucket of 25 MiB"
        costs = [cost_row(replicas) for replicas in (2, 4, 8)]
        show(third, COST_HEADINGS, costs)
        command = f"python -m benchmarks.alarms --steps {options.steps} --seeds {options.seeds}"
        command += f" --attack-seeds {options.attack_seeds}"
        parts = [
            f"Machine: {facts}.\n",
            markdown(title, HONEST_HEADINGS, honest),
            markdown(second, ATTACK_HEADINGS, attacks),
            markdown(third, COST_HEADINGS, costs),
        ]
        keep(options.out, "Alarms", command, parts)


if __name__ == "__main__":
    main()
