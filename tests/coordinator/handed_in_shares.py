"""Shares of checkpoints as the peers of a plan hand them in, and a collector that takes them."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import torch

from dtfm_coordinator.records.checkpoint_collector import CheckpointCollector
from dtfm_protocol.checkpoint.manifest import Manifest
from dtfm_protocol.checkpoint.shard import encode_shard, tensor_entry
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import CHECKPOINT, HandIn, Receipt, hand_in
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import Checkpointing, Evaluation, Model, Planning, Training
from dtfm_protocol.job.resolved_job import Corpus, ResolvedJob, Shard
from dtfm_protocol.model.model_config import resolve_config
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote, digest_of_state
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream
from tests.harness.membership import SWARM
from tests.harness.named_peers import id_of, vote_on

OWNER = "owner"
NAMES = {id_of(name): name for name in "abxy"}
A, B, X, Y = NAMES
ROUTES = ((A, X), (B, Y))
PLAN = Plan(version=3, stages=((0, 2), (2, 4)), routes=ROUTES)
SMALL = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
JOB = ResolvedJob(
    name="tiny",
    config=resolve_config(Model.model_validate({"architecture": "llama", **SMALL}), vocab_size=17, sequence_length=8),
    corpus=Corpus(dtype="uint16", vocab_size=17, shards=(Shard(sha256="0" * 64, tokens=1000),)),
    training=Training(steps=90, global_batch=2, micro_batch=1, sequence_length=8, learning_rate=1e-3),
    evaluation=Evaluation(),
    plan=Planning(),
    checkpoint=Checkpointing(),
)


def state(step: int, stage: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + stage)
    return {f"{kind}/layer.{stage}": torch.randn(3, 5, generator=generator) for kind in ("weight", "exp_avg")}


def share_of(
    peer: str, step: int = 50, data: bytes | None = None, plan: Plan = PLAN, **change: Any
) -> tuple[HandIn, bytes]:
    """What `peer` hands in: each replica a digest, the first of each stage the file."""
    stage = plan.stage_of(peer) or 0
    if data is None:
        data = encode_shard(state(step, stage)) if plan.replicas(stage)[0] == peer else b""
    values = {
        "step": step,
        "plan_version": plan.version,
        "stage": stage,
        "digest": hashlib.sha256(f"{step} {stage}".encode()).hexdigest(),
        "eval_loss": 1.5,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest() if data else None,
        "votes": (vote_of(peer, step, plan),),
    }
    return HandIn.model_validate(values | change), data


def vote_of(peer: str, step: int = 50, plan: Plan = PLAN, digest: str | None = None) -> StateVote:
    """A peer's vote on its stage's part of the state, on what `state` draws unless a digest is given."""
    stage = plan.stage_of(peer) or 0
    hashes = {key: tensor_entry("x.safetensors", tensor)[0].sha256 for key, tensor in state(step, stage).items()}
    return vote_on(
        NAMES.get(peer, peer),
        Mark(step=step, plan=plan.version),
        plan.stages[stage],
        digest or digest_of_state(hashes),
    )


class Swarm:
    """An archive on a network, and what it said."""

    def __init__(self, folder: Path, plan: Plan | None = PLAN, clock: MonotonicClock | None = None) -> None:
        self.store = CheckpointStore(folder)
        self.kept: list[Manifest] = []
        self.archive = CheckpointCollector(self.store, JOB, SWARM, (clock or MonotonicClock()).now)
        self.archive.subscribe(self.kept.append, lambda _: None)
        self.refused: list[str] = []
        self._network = MemoryNetwork()
        if plan is not None:
            self.archive.expect(plan)

    async def take(self, stream: Stream) -> None:
        try:
            await self.archive.take(stream)
        except Refused as error:
            self.refused.append(str(error))
            raise

    async def hand_in(self, peer: str, share: HandIn, data: bytes) -> Receipt:
        await MemoryDataPlane(self._network, OWNER).serve(CHECKPOINT, self.take)
        return await asyncio.wait_for(hand_in(MemoryDataPlane(self._network, peer), OWNER, share, data), 30)

    async def give(self, *peers: str, **change: Any) -> None:
        """Hand in for each of `peers` what belongs to it."""
        for peer in peers:
            assert (await self.hand_in(peer, *share_of(peer, **change))).taken
