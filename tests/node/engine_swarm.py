"""All peers of a plan, which run the real engine in one event loop over in-memory streams, and what they train."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.host_copies import HostCopies
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.step_evidence import StepEvidence
from dtfm_node.engine.trainer import Trainer
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.runner.token_source import TokenSource
from dtfm_node.state.fetch import Fetched
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.restore import load_state
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.base_transfers import BASE, serve_base
from dtfm_protocol.checkpoint.transfers import STATE, serve_state
from dtfm_protocol.data.corpus_reader import CorpusReader
from dtfm_protocol.data.corpus_writer import write_shards
from dtfm_protocol.data.token_shards import ShardFolder
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Model, Planning, Training
from dtfm_protocol.job.job_timeline import JobTimeline
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream, read_message
from tests.harness.named_peers import signer_of

CPU = torch.device("cpu")
VOCAB, LAYERS, STEPS = 61, 4, 6
PATIENCE = 60.0
"""Seconds after which a peer that still waits counts as hanging."""

Layers = list[tuple[int, int]]
Routes = list[tuple[str, ...]]
PLANS: dict[str, tuple[Layers, Routes]] = {
    "1x1": ([(0, 4)], [("a",)] * 4),
    "1x2": ([(0, 2), (2, 4)], [("a", "x")] * 4),
    "1x4": ([(0, 1), (1, 2), (2, 3), (3, 4)], [("a", "m", "n", "x")] * 4),
    "2x1": ([(0, 4)], [("a",), ("b",)] * 2),
    "4x1": ([(0, 4)], [("a",), ("b",), ("c",), ("d",)]),
    "2x2": ([(0, 2), (2, 4)], [("a", "x"), ("b", "y")] * 2),
    "uneven layers": ([(0, 1), (1, 4)], [("a", "x"), ("b", "y")] * 2),
    "uneven shares": ([(0, 2), (2, 4)], [("a", "x"), ("a", "x"), ("a", "y"), ("a", "x")]),
    "crossed routes": ([(0, 1), (1, 3), (3, 4)], [("a", "m", "x"), ("b", "m", "y"), ("a", "m", "y"), ("a", "n", "x")]),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At this size threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus."""
    folder = tmp_path_factory.mktemp("engine")
    write_shards(folder / "tokens", [corpus_tokens()], VOCAB, shard_bytes=512)
    return folder


def corpus_tokens() -> np.ndarray:
    return np.random.default_rng(7).integers(0, VOCAB, 1500)


def job_of(home: Path, *, tied: bool = False, **training: Any) -> ResolvedJob:
    """A tiny llama; clipping works, and the last evaluation micro-batch is smaller than the others."""
    fields = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = {"architecture": "llama", "intermediate_size": 48, "tie_word_embeddings": tied, **fields}
    values = {
        "steps": STEPS,
        "global_batch": 8,
        "micro_batch": 2,
        "sequence_length": 16,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "clip_norm": 0.4,
        "seed": 5,
    }
    config = resolve_config(Model.model_validate(model), VOCAB, 16)
    anatomy(config)  # once, before several peers' threads would look at the same time
    return ResolvedJob(
        name="tiny",
        config=config,
        corpus=write_shards(home / "tokens", [corpus_tokens()], VOCAB, shard_bytes=512),
        training=Training.model_validate(values | training),
        evaluation=Evaluation(every=4, sequences=5),
        plan=Planning(),
        checkpoint=Checkpointing(),
    )


def plan_of(name: str, **fields: Any) -> Plan:
    if name.endswith(" zero-bubble"):
        name, fields = name.removesuffix(" zero-bubble"), fields | {"schedule": "zero-bubble"}
    stages, routes = PLANS[name]
    return Plan.model_validate({"version": 1, "stages": stages, "routes": routes} | fields)


State = dict[str, torch.Tensor]


@dataclass
class Result:
    """What a run left: its rows, and weights and moments by name."""

    rows: list[StepMetrics] = field(default_factory=list)
    state: State = field(default_factory=dict)


class Peer:
    """One member: what its daemon does under one plan, without the daemon."""

    def __init__(
        self, network: MemoryNetwork, home: Path, job: ResolvedJob, plan: Plan, me: str, holdings: Inventory
    ) -> None:
        self.plane = MemoryDataPlane(network, me)
        self.holdings = holdings
        """They may come from an earlier plan."""
        self.me, self.plan, self.job = me, plan, job
        self.evidence = StepEvidence(signer_of(me), self.plane)
        self.rows: list[StepMetrics] = []
        self.states: dict[int, State] = {}
        """Weights and moments after each step."""
        self.pause: Callable[[int, str], bool] = lambda step, call: False
        """Whether this peer stops for ever before this call on its compute thread."""
        self.paused = asyncio.Event()
        self.exchanging: Callable[..., AbstractAsyncContextManager[Exchange]] = Exchange.running
        """Makes the exchange; also one that lies, or holds back."""
        self.training_stage: Callable[..., TrainingStage] = TrainingStage
        """Makes the state."""
        self.together: asyncio.Barrier | None = None
        """Where peers that stop before the job's end wait for each other: until then they owe each other frames."""
        self._step = 0
        self._ready = asyncio.Event()
        self._streams: list[Stream] = []
        self._exchange: Exchange | None = None
        self._corpus = CorpusReader(job.corpus, ShardFolder(home / "tokens"))
        self.source: TokenSource | None = None
        """Where it has its tokens from; None: from the folder of all."""
        self._pool = ThreadPoolExecutor(1)
        self.machine = Runtime(CPU, self.compute, self.compute, HostCopies(CPU))
        """It computes here; also one that says it took another time."""
        self.stage: TrainingStage | None = None
        self.trainer: Trainer | None = None
        self.fetched = Fetched()

    async def listen(self) -> None:
        await self.plane.serve(TRAINING, self._answer)
        await self.evidence.listen()
        await self.plane.serve(STATE, lambda stream: serve_state(stream, self.holdings))
        await self.plane.serve(BASE, lambda stream: serve_base(stream, self.holdings.pieces))

    async def _answer(self, stream: Stream) -> None:
        self._streams.append(stream)
        hello = await read_message(stream, Hello)
        assert hello.plan_version == self.plan.version
        await self._ready.wait()
        assert self._exchange is not None
        await (self._exchange.take_pulses(stream) if hello.pulses else self._exchange.serve(stream))

    async def die(self) -> None:
        """Cut every stream that others opened, as the end of a process does; those it opened its task cuts."""
        self.plane.vanish()
        for stream in self._streams:
            await stream.close()

    async def compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self.pause(self._step, function.__name__):
            self.paused.set()
            await asyncio.Event().wait()
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def train(self, last: int) -> None:
        try:
            async with self.exchanging(self.plane, self.plan.version, self.plan.peers) as exchange:
                await self._train(last, exchange)
                await exchange.flush()
        finally:
            self._pool.shutdown()

    async def _train(self, last: int, exchange: Exchange) -> None:
        job, plan = self.job, self.plan
        resumed, timeline = plan.resume.mark.step, JobTimeline(job, plan.amendments)
        training = timeline.training_at(resumed + 1)
        state = self.stage = await self.compute(self.training_stage, job.config, plan, self.me, training, CPU)
        state.training_at = timeline.training_at
        self.holdings.begin(state, plan.resume.mark)
        self.fetched = await load_state(self.plane, job, plan, state, self.holdings, self.compute)
        self._remember(resumed)
        source = self.source if state.is_first or state.is_last else None
        corpus = self._corpus if source is None else source.reader
        trainer = Trainer(job, plan, self.me, state, corpus, exchange, self.machine, self.evidence)
        self.trainer = trainer
        trainer.expect_first()
        self._exchange = exchange
        self._ready.set()
        await trainer.start()
        self.holdings.enter(state)

        async def prepare(step: int) -> None:
            self._step = step
            if source is not None:
                await source.ensure(plan, self.me, step)

        for step in range(resumed + 1, last + 1):
            self.rows.append(await trainer.step(step, prepare))
            self._remember(step)
        if self.together is not None:
            await self.together.wait()

    def _remember(self, step: int) -> None:
        self.states[step] = self.now()

    def now(self) -> State:
        """Weights and moments as they are."""
        assert self.stage is not None
        return {key: value.clone() for key, value in state_tensors(self.stage.parameters, self.stage.optimizer)}


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compute that outlives the threads of a plan."""
    return function(*arguments)


class Swarm:
    """All peers of one plan."""

    def __init__(
        self,
        home: Path,
        job: ResolvedJob,
        plan: Plan,
        network: MemoryNetwork | None = None,
        former: "Swarm | None" = None,
    ) -> None:
        """Make the peers; those of a `former` plan hold what they held then."""
        self.network = network or MemoryNetwork()
        self.peers: dict[str, Peer] = {}
        for me in plan.peers:
            if former is not None and me in former.peers:
                holdings = former.peers[me].holdings
            else:
                (home / "disks").mkdir(exist_ok=True)
                holdings = Inventory(Snapshots(home / "disks" / me), at_once)
            self.peers[me] = Peer(self.network, home, job, plan, me, holdings)
        self.plan = plan

    async def run(self, last: int = STEPS) -> Result:
        """Train to step `last`; the same on every peer."""
        together = asyncio.Barrier(len(self.peers))
        for peer in self.peers.values():
            peer.together = together
            await peer.listen()
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            for peer in self.peers.values():
                tasks.create_task(peer.train(last))
        result = Result(next(iter(self.peers.values())).rows)
        for stage in range(len(self.plan.stages)):
            keys = {frozenset(self.peers[me].states[last]) for me in self.plan.replicas(stage)}
            assert len(keys) == 1
        for peer in self.peers.values():
            assert timeless(peer.rows) == timeless(result.rows)
            for key, value in peer.states[last].items():  # of replicas, and of a matrix that both ends hold
                assert torch.equal(result.state.setdefault(key, value), value), f"{peer.me} has another {key}"
        return result

    async def ends(self, victim: str | None = None, last: int = STEPS) -> dict[str, list[BaseException]]:
        """How the peers end, by their exceptions, where `victim` vanishes as soon as it pauses."""
        for peer in self.peers.values():
            await peer.listen()
        tasks = {me: asyncio.create_task(peer.train(last)) for me, peer in self.peers.items()}
        try:
            async with asyncio.timeout(PATIENCE):
                if victim is not None:
                    await self.peers[victim].paused.wait()
                    tasks[victim].cancel()
                    await self.peers[victim].die()
                await asyncio.wait(tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            ends = await asyncio.gather(*tasks.values(), return_exceptions=True)
        errors = {me: [] if end is None else leaves(end) for me, end in zip(tasks, ends, strict=True)}
        return {me: found for me, found in errors.items() if me != victim}


def timeless(rows: list[StepMetrics]) -> list[StepMetrics]:
    """The rows without when each peer made them."""
    return [row.model_copy(update={"at": None}) for row in rows]


def identical(a: State, b: State) -> bool:
    """Equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions inside nested groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
