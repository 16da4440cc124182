"""Nodes that keep states of a small model on an in-memory network, and a coordinator that takes their checkpoints."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.checkpointer import Checkpointer
from dtfm_node.state.snapshots import Snapshots
from dtfm_protocol.checkpoint.shard import describe_shard, tensor_entry
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, HAND_IN_LIMIT, Deposit, HandIn, Receipt, deposit
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.wire.stream import Stream, Unreachable, read_message, write_message
from tests.harness.named_peers import id_of, identity_of, signer_of, vote_on
from tests.node.finals import final
from tests.node.test_training_stage import TRAINING, state_of

NAMES = {id_of(name): name for name in ("a", "b", "z", "stranger")}
A, B, Z, STRANGER = NAMES
STAGES = ((0, 2), (2, 5))
ALONE = Plan(version=1, stages=STAGES, routes=((A, B),) * 4, idle=(Z,), shadows=(Z, Z), author="owner")
"""Each of `a` and `b` has a stage to itself, and `z` keeps copies of both."""
TWICE = Plan(version=1, stages=((0, 5),), routes=((A,), (B,)) * 2, author="owner")
"""`a` and `b` are replicas."""
LIMIT = 1 << 22
State = dict[str, torch.Tensor]


def at(step: int, plan: int = 1) -> Mark:
    return Mark(step=step, plan=plan)


def said(mark: Mark) -> SignedCommit:
    """The commit of the arbiter, which is `a` in each of these plans."""
    return final(mark, by=identity_of("a"))


def row(step: int) -> StepMetrics:
    return StepMetrics(
        step=step, loss=1.0, tokens=8, seconds=0.1, plan_version=1, learning_rate=1e-3, grad_norm=1.0,
        predicted_seconds=None, eval_loss=1.5,
    )  # fmt: skip


def state_under(plan: Plan, me: str) -> TrainingStage:
    """A stage that has been trained for a step."""
    state = TrainingStage(state_of("only").config, plan, me, TRAINING, torch.device("cpu"))
    state.initialise()
    train(state, 1)
    return state


def train(state: TrainingStage, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    state.begin_step(lambda group: None)
    for gradient in state.gradients.of_bucket.values():
        gradient.copy_(torch.randn(gradient.shape, generator=generator))
    state.prepare(at(step))
    state.apply(1.0, said(at(step)))


def now(state: TrainingStage) -> State:
    return {key: tensor.clone() for key, tensor in state_tensors(state.parameters, state.optimizer)}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def vote_on_file(name: str, data: bytes, mark: Mark, layers: LayerRange) -> StateVote:
    """The vote of whoever writes a file like this; on nothing where it is no such file."""
    try:
        _, entries = describe_shard("x.safetensors", data)
    except Refused:
        entries = {}
    return vote_on(name, mark, layers, digest_of_state({key: entry.sha256 for key, entry in entries.items()}))


def digest_of(state: TrainingStage, leave_out: Collection[str] = ()) -> str:
    """The digest of all weights and moments of a stage."""
    tensors = state_tensors(state.parameters, state.optimizer)
    hashes = {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in tensors}
    return digest_of_state({k: value for k, value in hashes.items() if k.partition("/")[2] not in leave_out})


async def until_there(snapshots: Snapshots, mark: Mark) -> None:
    """Wait until a snapshot of `mark` is there."""
    added = asyncio.Event()
    snapshots.when_added(added.set)
    async with asyncio.timeout(30):
        while mark not in {holding.mark for holding in snapshots.holdings()}:
            await added.wait()
            added.clear()


class Plane(MemoryDataPlane):
    """A peer on a network that notes whom it did not reach."""

    def __init__(self, network: MemoryNetwork, peer: str) -> None:
        super().__init__(network, peer)
        self.unreached: asyncio.Queue[str] = asyncio.Queue()

    async def open(self, peer: str, service: str) -> MemoryStream:
        try:
            return await super().open(peer, service)
        except Unreachable:
            self.unreached.put_nowait(peer)
            raise


class Swarm:
    """Nodes that keep, and a coordinator that takes checkpoints unless it is away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.network = MemoryNetwork()
        self.handed_in: list[tuple[str, HandIn, bytes]] = []
        self.taken: asyncio.Queue[HandIn] = asyncio.Queue()
        """What was handed in, for who waits for it."""
        self._planes: dict[str, Plane] = {}

    def plane(self, peer: str) -> Plane:
        return self._planes.setdefault(peer, Plane(self.network, peer))

    @contextlib.asynccontextmanager
    async def node(
        self,
        peer: str,
        plan: Plan | None = None,
        *,
        snapshots: Snapshots | None = None,
        uplink: UplinkPacer | None = None,
        confirm_seconds: float = 1000.0,
    ) -> AsyncIterator[Checkpointer]:
        keeping = Checkpointer.running(
            self.plane(peer), uplink or UplinkPacer(), snapshots or Snapshots(self._folder / peer), LIMIT,
            signer_of(NAMES[peer]), room_retry_seconds=0.01, upload_retry_seconds=0.01, confirm_seconds=confirm_seconds,
        )  # fmt: skip
        async with keeping as checkpointer:
            if plan is not None:
                checkpointer.serve(plan)
            yield checkpointer

    async def coordinate(self) -> None:
        async def take(stream: Stream) -> None:
            share = await read_message(stream, HandIn, HAND_IN_LIMIT)
            data = b""
            if share.size:
                await write_message(stream, Receipt(taken=True, text="send the file"))
                data = bytes(await stream.read(share.size))
            self.handed_in.append((stream.peer, share, data))
            self.taken.put_nowait(share)
            await write_message(stream, Receipt(taken=True, text="kept"))

        await self.plane("owner").serve(CHECKPOINT, take)

    async def answered(self) -> None:
        """Wait until nobody answers a stream any more, and whoever has asked has read the answer."""
        await asyncio.wait_for(asyncio.gather(*self.network.tasks), 30)
        for _ in range(10):
            await asyncio.sleep(0)

    async def offer(self, peer: str, data: bytes, **change: Any) -> Receipt:
        """Have `peer` give `z` a copy of its stage, or of what it says it is."""
        file = self._folder / "file.safetensors"
        file.write_bytes(data)
        stage = ALONE.stage_of(peer) or 0
        values = {"plan_version": 1, "mark": at(7), "layers": STAGES[stage], "size": len(data)}
        values["sha256"] = hashlib.sha256(data).hexdigest()
        values["commit"] = said(change.get("mark", at(7)))
        values |= change
        values.setdefault("votes", (vote_on_file(NAMES[peer], data, values["mark"], values["layers"]),))
        async with asyncio.timeout(30):
            return await deposit(self.plane(peer), Z, Deposit.model_validate(values), file)

    def files(self, peer: str) -> list[str]:
        return sorted(path.name for path in (self._folder / peer).iterdir())


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    return Swarm(tmp_path)
