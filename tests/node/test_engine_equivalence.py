"""The swarm's mathematics is that of one process: every plan is held to the plain loop of `dtfm-node solo`.

All peers of a plan run the real engine in one event loop, over in-memory streams.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_node.commands.solo import Solo
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.host_copies import HostCopies
from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.step_evidence import StepEvidence
from dtfm_node.engine.trainer import Trainer
from dtfm_node.engine.training_stage import Diverged, TrainingStage
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.checkpointer import Checkpointer
from dtfm_node.state.fetch import Fetched
from dtfm_node.state.inventory import Inventory
from dtfm_node.state.restore import load_state
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, STATE, serve_state
from dtfm_protocol.data.token_shards import ShardFolder, TokenReader, write_shards
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Model, Planning, Training
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.model.architecture_probe import anatomy
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume, Source
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes, Stream, read_message
from tests.harness.named_peers import SWARM, id_of, identity_of, signer_of
from tests.node.finals import ancestors

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
VOCAB, LAYERS, STEPS = 61, 4, 6
OWNER = "owner"
PATIENCE = 60.0
"""Seconds after which a peer that still waits counts as hanging."""

Layers = list[tuple[int, int]]
Routes = list[tuple[str, ...]]
AB, XY = ("a", "b"), ("x", "y")
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


@cache
def alone(home: Path, tied: bool) -> Result:
    """The job in one process."""
    job = job_of(home, tied=tied)
    folder = home / f"solo-{tied}"
    (folder).mkdir()
    (folder / "tokens").symlink_to(home / "tokens")
    solo = Solo(job, folder, CPU)
    result = Result([solo.step(step) for step in range(1, STEPS + 1)])
    solo.keep(result.rows[-1])
    store = CheckpointStore(folder / "checkpoints")
    manifest = store.newest()
    assert manifest is not None
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        result.state |= {f"{kind}/{name}": value for name, value in store.tensors(manifest, kind)}
    return result


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
        self._tokens = TokenReader(job.corpus, ShardFolder(home / "tokens"))
        self._pool = ThreadPoolExecutor(1)
        self._machine = Runtime(CPU, self.compute, self.compute, HostCopies(CPU))
        self.stage: TrainingStage | None = None
        self.trainer: Trainer | None = None
        self.fetched = Fetched()

    async def listen(self) -> None:
        await self.plane.serve(TRAINING, self._answer)
        await self.evidence.listen()
        await self.plane.serve(STATE, lambda stream: serve_state(stream, self.holdings))

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
        state = self.stage = await self.compute(self.training_stage, job.config, plan, self.me, job.training, CPU)
        resumed = plan.resume.mark.step
        self.holdings.begin(state, plan.resume.mark)
        self.fetched = await load_state(self.plane, job, plan, state, self.holdings, self.compute)
        self._remember(resumed)
        reader = self._tokens if state.is_first or state.is_last else None
        trainer = Trainer(job, plan, self.me, state, reader, exchange, self._machine, self.evidence)
        self.trainer = trainer
        trainer.expect_first()
        self._exchange = exchange
        self._ready.set()
        await trainer.start()
        self.holdings.enter(state)

        async def prepare(step: int) -> None:
            self._step = step

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
            assert peer.rows == result.rows
            for key, value in peer.states[last].items():  # of replicas, and of a matrix that both ends hold
                assert torch.equal(result.state.setdefault(key, value), value), f"{peer.me} has another {key}"
        return result

    async def ends(self, victim: str | None = None) -> dict[str, list[BaseException]]:
        """How the peers end, by their exceptions, where `victim` vanishes as soon as it pauses."""
        for peer in self.peers.values():
            await peer.listen()
        tasks = {me: asyncio.create_task(peer.train(STEPS)) for me, peer in self.peers.items()}
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


def identical(a: State, b: State) -> bool:
    """Equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def distance(found: State, wanted: State) -> float:
    """Relative L2 distance over all tensors together."""
    assert found.keys() == wanted.keys()
    apart = sum(float((found[key] - wanted[key]).double().square().sum()) for key in wanted)
    size = sum(float(wanted[key].double().square().sum()) for key in wanted)
    return float((apart / size) ** 0.5)


def assert_same_training(found: Result, wanted: Result, tolerance: float) -> None:
    assert [row.step for row in found.rows] == [row.step for row in wanted.rows]
    for ours, theirs in zip(found.rows, wanted.rows, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=tolerance)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=tolerance)
        assert (ours.eval_loss is None) == (theirs.eval_loss is None)
        if theirs.eval_loss is not None:
            assert ours.eval_loss == pytest.approx(theirs.eval_loss, rel=tolerance)
        assert ours.learning_rate == theirs.learning_rate
        assert ours.tokens == theirs.tokens
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        parts = [
            {key: value for key, value in result.state.items() if key.startswith(f"{kind}/")}
            for result in (found, wanted)
        ]
        assert distance(*parts) < tolerance


def test_the_reference_learns_clips_and_evaluates(home: Path) -> None:
    """Else the comparisons below would compare nothing."""
    job, reference = job_of(home), alone(home, False)
    assert any(row.grad_norm > job.training.clip_norm for row in reference.rows)
    assert [row.step for row in reference.rows if row.eval_loss is not None] == [4, 6]
    assert len({row.loss for row in reference.rows}) == STEPS
    assert len({key.partition("/")[0] for key in reference.state}) == 3


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", PLANS)
async def test_any_plan_trains_as_one_process_does(home: Path, name: str, tied: bool) -> None:
    found = await Swarm(home, job_of(home, tied=tied), plan_of(name)).run()
    assert_same_training(found, alone(home, tied), 1e-5)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
@pytest.mark.parametrize("name", ["1x1", "1x4", "2x2", "crossed routes"])
async def test_the_schedule_does_not_change_what_is_computed(home: Path, name: str, schedule: str, tied: bool) -> None:
    found = await Swarm(home, job_of(home, tied=tied), plan_of(name, schedule=schedule)).run()
    assert_same_training(found, alone(home, tied), 1e-5)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize(("name", "recompute"), [("1x1", [0]), ("2x2", [0, 1]), ("crossed routes", [1])])
async def test_recomputing_a_stage_does_not_change_what_is_computed(
    home: Path, name: str, recompute: list[int], schedule: str
) -> None:
    found = await Swarm(home, job_of(home), plan_of(name, recompute=recompute, schedule=schedule)).run()
    assert_same_training(found, alone(home, False), 1e-5)


def in_small_buckets(*arguments: Any) -> TrainingStage:
    return TrainingStage(*arguments, bucket_bytes=12_000)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", ["4x1", "2x2", "crossed routes"])
async def test_many_small_buckets_reduce_to_the_same(home: Path, name: str, tied: bool, schedule: str) -> None:
    """Buckets that cut through parameters, and are sent while the backward still runs."""
    swarm = Swarm(home, job_of(home, tied=tied), plan_of(name, schedule=schedule))
    for peer in swarm.peers.values():
        peer.training_stage = in_small_buckets
    found = await swarm.run()
    stage = next(iter(swarm.peers.values())).stage
    assert stage is not None
    assert len(stage.gradients.buckets[0]) > 2
    assert_same_training(found, alone(home, tied), 1e-5)


@pytest.mark.parametrize("wire", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
async def test_a_lossy_wire_stays_near_and_keeps_replicas_bit_identical(home: Path, wire: str, tied: bool) -> None:
    found = await Swarm(home, job_of(home, tied=tied), plan_of("crossed routes", wire=wire)).run()
    reference = alone(home, tied)
    for ours, theirs in zip(found.rows, reference.rows, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.01)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=0.05)
    assert distance(found.state, reference.state) < 0.1
    assert found.rows[0].loss != reference.rows[0].loss


async def test_bf16_products_train_over_any_plan(home: Path) -> None:
    job = job_of(home, precision="bf16")
    one = await Swarm(home, job, plan_of("1x1")).run()
    many = await Swarm(home, job, plan_of("crossed routes")).run()
    for ours, theirs in zip(many.rows, one.rows, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.01)
    assert one.rows[0].loss != alone(home, False).rows[0].loss


async def test_a_run_is_a_function_of_job_and_plan(home: Path) -> None:
    """Sums run in a fixed order, whichever peer is faster."""
    runs = [await Swarm(home, job_of(home), plan_of("crossed routes")).run() for _ in range(2)]
    assert identical(runs[0].state, runs[1].state)
    assert [(row.loss, row.grad_norm) for row in runs[0].rows] == [(row.loss, row.grad_norm) for row in runs[1].rows]


@contextlib.asynccontextmanager
async def owner(network: MemoryNetwork, job: ResolvedJob, folder: Path) -> AsyncIterator[CheckpointCollector]:
    """A coordinator that keeps checkpoints and gives them out."""
    archive = CheckpointCollector(CheckpointStore(folder), job, SWARM)
    plane = MemoryDataPlane(network, OWNER)
    await plane.serve(CHECKPOINT, archive.take)
    await plane.serve(STATE, lambda stream: serve_state(stream, archive))
    yield archive


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("before", "after"), [("2x2", "uneven shares"), ("uneven shares", "1x4"), ("1x1", "crossed routes")]
)
async def test_a_change_of_plan_at_a_checkpoint_goes_unnoticed(
    home: Path, tmp_path: Path, before: str, after: str, tied: bool
) -> None:
    job, network = job_of(home, tied=tied), MemoryNetwork()
    first = plan_of(before, author=OWNER)
    names = {id_of(name): name for name in first.peers}
    first = first.renamed({name: peer for peer, name in names.items()})  # who votes on states has a key
    kept = Resume(mark=Mark(step=3, plan=1), sources=(Source(peer=OWNER, layers=((0, LAYERS),)),))
    async with owner(network, job, tmp_path / "checkpoints") as archive:
        archive.expect(first)
        swarm = Swarm(home, job, first, network)
        start = await swarm.run(last=3)
        for me, peer in swarm.peers.items():
            assert peer.stage is not None
            async with Checkpointer.running(
                peer.plane, UplinkPacer(), Snapshots(tmp_path / me), 1 << 30, signer_of(names[me])
            ) as checkpointer:
                await checkpointer.keep(
                    peer.stage, first, start.rows[2], tuple(start.rows[:3]), handed_in=True, copied=False, last=False
                )
                await checkpointer.settled()
        manifest = archive.newest()
        assert manifest is not None
        assert manifest.step == 3
        digests = archive.certified(kept.mark)
        assert [digest.layers for digest in digests] == list(first.stages)
        second = plan_of(after, version=2, resume=kept.model_copy(update={"digests": digests}))
        rest = await Swarm(home, job, second, network).run()
    assert_same_training(Result(start.rows + rest.rows, rest.state), alone(home, tied), 1e-5)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("before", "after"), [("2x2", "uneven shares"), ("uneven shares", "1x4"), ("1x1", "crossed routes")]
)
async def test_a_change_of_plan_without_a_checkpoint_goes_unnoticed(
    home: Path, before: str, after: str, tied: bool
) -> None:
    """Peers keep what they have, and give the others what these lack; most states move to nobody."""
    job = job_of(home, tied=tied)
    former = Swarm(home, job, plan_of(before))
    start = await former.run(last=3)
    held = tuple(Source(peer=me, layers=(former.plan.stages[former.plan.stage_of(me) or 0],)) for me in former.peers)
    second = plan_of(after, version=2, resume=Resume(mark=Mark(step=3, plan=1), sources=held))
    swarm = Swarm(home, job, second, former.network, former)
    rest = await swarm.run()
    assert_same_training(Result(start.rows + rest.rows, rest.state), alone(home, tied), 1e-5)
    for me, peer in swarm.peers.items():
        lacked = peer.states[3].keys() - (former.peers[me].states[3].keys() if me in former.peers else set())
        assert peer.fetched.bytes == sum(peer.states[3][key].nbytes for key in lacked)


async def test_a_change_of_plan_that_only_moves_shares_leaves_every_bit_where_it_is(home: Path) -> None:
    former = Swarm(home, job_of(home), plan_of("2x2"))
    await former.run(last=3)
    resume = Resume(mark=Mark(step=3, plan=1))  # no sources: everyone must do with what it has
    swarm = Swarm(home, job_of(home), plan_of("uneven shares", version=2, resume=resume), former.network, former)
    await swarm.run()
    for me, peer in swarm.peers.items():
        assert identical(peer.states[3], former.peers[me].states[3])
        assert peer.fetched.bytes == 0


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions inside nested groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def at(step: int, call: str, occurrence: int = 1) -> Callable[[int, str], bool]:
    """The how-manieth compute call of a name in a step."""
    seen = itertools.count(1)
    return lambda now, name: now == step and name == call and next(seen) == occurrence


@pytest.mark.parametrize(
    ("name", "victim", "moment"),
    [
        ("2x2", "x", (3, "begin_step", 1)),
        ("2x2", "x", (3, "forward", 2)),
        ("2x2", "y", (3, "backward", 1)),
        ("2x2", "b", (3, "backward", 2)),
        ("2x2", "y", (3, "sum_of_parts", 1)),
        ("2x2", "a", (3, "forward", 1)),
        ("2x2", "a", (3, "_take", 1)),
        ("1x4", "n", (3, "forward", 1)),
        ("crossed routes", "m", (3, "backward", 3)),
        ("4x1", "c", (3, "encode", 2)),
        ("2x2 zero-bubble", "y", (3, "weight", 1)),
        ("2x2 zero-bubble", "a", (3, "weight", 2)),
    ],
)
async def test_a_peer_that_vanishes_before_the_commit_costs_the_step_and_nothing_else(
    home: Path, name: str, victim: str, moment: tuple[int, str, int]
) -> None:
    swarm = Swarm(home, job_of(home, tied=True), plan_of(name))
    swarm.peers[victim].pause = at(*moment)
    for me, errors in (await swarm.ends(victim)).items():
        assert {type(error) for error in errors} == {PeerLost}, me
        peer = swarm.peers[me]
        assert [row.step for row in peer.rows] == [1, 2]
        assert identical(peer.now(), peer.states[2])


@pytest.mark.parametrize(("name", "victim"), [("1x4", "x"), ("1x4", "m"), ("1x2", "x")])
async def test_a_peer_that_vanishes_before_it_ever_sent_a_tensor_is_noticed_by_all(
    home: Path, name: str, victim: str
) -> None:
    swarm = Swarm(home, job_of(home), plan_of(name))
    swarm.peers[victim].pause = at(1, "forward")
    for me, errors in (await swarm.ends(victim)).items():
        assert {type(error) for error in errors} == {PeerLost}, me
        assert identical(swarm.peers[me].now(), swarm.peers[me].states[0])


@pytest.mark.parametrize("victim", ["a", "x"])
async def test_a_peer_that_vanishes_at_the_commit_leaves_none_with_half_a_step(home: Path, victim: str) -> None:
    """The arbiter, `a`, and another one: each of the rest is before the step or after it, never in between."""
    whole = Swarm(home, job_of(home), plan_of("2x2"))
    await whole.run()
    swarm = Swarm(home, job_of(home), plan_of("2x2"))
    swarm.peers[victim].pause = at(3, "apply")
    for me, errors in (await swarm.ends(victim)).items():
        assert {type(error) for error in errors} == {PeerLost}, me
        peer = swarm.peers[me]
        assert len(peer.rows) in {2, 3}
        assert identical(peer.now(), whole.peers[me].states[len(peer.rows)])


@pytest.mark.parametrize("name", ["2x2", "1x4", "2x2 zero-bubble"])
async def test_who_did_not_hear_that_a_step_became_final_can_apply_it_later_to_the_same_bits(
    home: Path, name: str
) -> None:
    """The arbiter vanishes with all votes in hand and no commit sent; what the others hold then is worth a step."""
    whole = Swarm(home, job_of(home), plan_of(name))
    final = await whole.run()
    swarm = Swarm(home, job_of(home), plan_of(name))

    class Silent(Exchange):
        async def send(self, peer: str, key: Key, payload: Bytes, seal: Bytes = b"") -> None:
            if key.kind is Kind.COMMIT and key.step == 3:
                swarm.peers["a"].paused.set()
                await asyncio.Event().wait()
            await super().send(peer, key, payload, seal)

    swarm.peers["a"].exchanging = Silent.running
    await swarm.ends("a")
    mark = Mark(step=3, plan=1)
    commit = SignedCommit.made(identity_of("a"), SWARM, 1, 3, Commit(grad_norm=final.rows[2].grad_norm))
    lineage = ancestors((1, Mark()), arbiter="a")
    after = plan_of(name, version=2, resume=Resume(mark=mark, commit=commit)).model_copy(update={"lineage": lineage})
    for me in swarm.peers.keys() - {"a"}:
        stage = swarm.peers[me].stage
        assert stage is not None
        assert (stage.mark, stage.prepared) == (Mark(step=2, plan=1), mark)
        await swarm.peers[me].holdings.redo(after, swarm.peers[me].evidence.signer)
        assert (stage.mark, stage.prepared, stage.commit) == (mark, None, commit)
        assert identical(swarm.peers[me].now(), whole.peers[me].states[3])


async def test_a_run_that_diverges_stops_everywhere_before_the_step_that_broke_it(home: Path) -> None:
    swarm = Swarm(home, job_of(home, learning_rate=1e30), plan_of("2x2"))
    ends = await swarm.ends()
    assert any(isinstance(error, Diverged) for errors in ends.values() for error in errors)
    for me, errors in ends.items():
        assert errors
        assert {type(error) for error in errors} <= {Diverged, PeerLost}, me
        peer = swarm.peers[me]
        assert 1 <= len(peer.rows) < STEPS
        assert identical(peer.now(), peer.states[len(peer.rows)])
