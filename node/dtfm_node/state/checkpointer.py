"""Checkpointer: keeps states beside training, as a snapshot on this node's disk, a copy of it where the plan says, and
a share of the coordinator's checkpoint."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dtfm_node.engine.runtime import on_thread
from dtfm_node.engine.state_tensors import state_tensors
from dtfm_node.engine.training_stage import TrainingStage
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.state.checkpoint_upload import CheckpointShare, CheckpointUpload
from dtfm_node.state.shadow_replication import ShadowReplication
from dtfm_node.state.snapshot_writer import Extract, SnapshotWriter, SnapshotWritten, keys_of_file
from dtfm_node.state.snapshots import UNSAFE_FILES, Snapshots
from dtfm_node.state.state_reading import COPY_BYTES
from dtfm_protocol.checkpoint.shard import digest_weights
from dtfm_protocol.checkpoint.transfers import SHADOW, HandIn
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane


class Checkpointer:
    """Keeper of this node's states: decides what of a state is written, and hands on what was written.

    Create it with `running`.
    """

    def __init__(
        self,
        me: str,
        snapshots: Snapshots,
        writer: SnapshotWriter,
        shadows: ShadowReplication,
        upload: CheckpointUpload,
    ) -> None:
        self._me, self._writer, self._upload = me, writer, upload
        self.snapshots, self.shadows = snapshots, shadows
        self.safe = Mark()
        """Newest state that the swarm has whole, on disks of several peers or of the coordinator."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        plane: DataPlane,
        uplink: UplinkPacer,
        snapshots: Snapshots,
        most_bytes: int,
        signer: Signer,
        *,
        copy_bytes: int = COPY_BYTES,
        room_retry_seconds: float = TIMEOUTS.snapshot_retry,
        upload_retry_seconds: float = TIMEOUTS.upload_retry,
        confirm_seconds: float = TIMEOUTS.checkpoint_confirm,
    ) -> AsyncIterator["Checkpointer"]:
        """Run a checkpointer that writes, gives away and takes until the block ends; an unforeseen error ends the
        block.

        Args:
            most_bytes: bytes of the largest copy that is kept for another peer.
            signer: signs this node's votes on its states, and checks those of others.
        """
        shadows = ShadowReplication(plane, uplink, snapshots, most_bytes, signer)
        upload = CheckpointUpload(plane, uplink, retry_seconds=upload_retry_seconds, confirm_seconds=confirm_seconds)
        with ThreadPoolExecutor(1, "disk") as disk:
            async with asyncio.TaskGroup() as tasks:
                writer = SnapshotWriter(
                    snapshots,
                    on_thread(disk),
                    tasks,
                    partial(StateVote.made, signer),
                    copy_bytes=copy_bytes,
                    retry_seconds=room_retry_seconds,
                )
                await plane.serve(SHADOW, shadows.take)
                background = [tasks.create_task(upload.run()), tasks.create_task(shadows.run())]
                try:
                    yield cls(plane.peer_id, snapshots, writer, shadows, upload)
                finally:
                    writer.cancel()
                    for task in background:
                        task.cancel()

    def serve(self, plan: Plan) -> None:
        """Keep copies, from now on, for the peers to which `plan` gives this node as their shadow."""
        self.shadows.serve(plan)

    async def keep(
        self,
        state: TrainingStage,
        plan: Plan,
        row: StepMetrics | None,
        rows: tuple[StepMetrics, ...],
        *,
        handed_in: bool,
        copied: bool,
        last: bool,
    ) -> None:
        """Begin to keep the present state; wait before until the last one is written.

        Args:
            row: metrics of the step that led to it; None: another plan has made it.
            rows: metrics of the steps up to this one that the coordinator has not confirmed yet.
            handed_in: whether it is due as the coordinator's checkpoint.
            copied: whether a copy is due on other peers' disks.
            last: whether no step follows: where there is no room for it now, it is tried again until there is.
        """
        assert state.mark is not None, "nobody keeps what is no state"
        step, eval_loss = state.mark.step, row.eval_loss if row is not None else None
        if not handed_in and self.snapshots.unsafe(self.safe) >= UNSAFE_FILES:
            log.info("no snapshot of step %d: those before are still on their way to other peers", step)
            return
        await self._writer.written()
        is_first_replica = plan.replicas(state.index)[0] == self._me

        def hand_on(written: SnapshotWritten) -> None:
            snapshot = written.snapshot if is_first_replica else None
            if snapshot is not None:
                self.shadows.offer(plan, state.index, snapshot)
            if handed_in:
                message = _hand_in_of(plan, state.index, step, eval_loss, rows, written, sends=is_first_replica)
                self._upload.put(
                    CheckpointShare(plan.author, message, self.snapshots.path(snapshot) if snapshot else None)
                )

        extract = _extract(state, rows, written=copied or is_first_replica)
        self._writer.begin(state, extract, last=last, then=hand_on)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written or waits to be handed in."""
        return not self._writer.is_writing and self._upload.is_idle

    async def save(self, state: TrainingStage, rows: tuple[StepMetrics, ...]) -> None:
        """Write a state of this node to its disk, and return when it is there."""
        await self._writer.save(state, rows)

    async def settled(self) -> None:
        """Wait until nothing is left to write or to hand in."""
        await self._writer.written()
        await self._upload.settled()

    def confirm(self, step: int, safe: Mark) -> None:
        """Take note that the coordinator has a whole checkpoint of `step`, and that the swarm has all of the state
        `safe`."""
        self._upload.confirm(step)
        if safe.order > self.safe.order:
            self.safe = safe
            self.snapshots.prune(safe)


def _extract(state: TrainingStage, rows: tuple[StepMetrics, ...], *, written: bool) -> Extract:
    """Return what is due of a state: all is hashed, and, if `written`, written, but what the first stage writes too; of
    that the weights are hashed."""
    assert state.mark is not None, "nobody keeps what is no state"
    tensors = dict(state_tensors(state.parameters, state.optimizer))
    own = keys_of_file(state, tensors)
    to_write = {key: tensor for key, tensor in tensors.items() if key in own} if written else None
    to_read = {key: tensor for key, tensor in tensors.items() if key in own or _is_weight(key)}
    return Extract(state.mark, state.layers, state.commit, rows, to_write, to_read, own)


def _hand_in_of(
    plan: Plan,
    stage: int,
    step: int,
    eval_loss: float | None,
    rows: tuple[StepMetrics, ...],
    written: SnapshotWritten,
    *,
    sends: bool,
) -> HandIn:
    """Return what the coordinator is given after `step`; the snapshot follows it, if this replica `sends` the
    file."""
    snapshot = written.snapshot if sends else None
    return HandIn(
        step=step,
        plan_version=plan.version,
        stage=stage,
        digest=digest_weights({key: value for key, value in written.hashes.items() if _is_weight(key)}),
        eval_loss=eval_loss,
        rows=rows,
        size=snapshot.bytes if snapshot else 0,
        sha256=snapshot.sha256 if snapshot else None,
        votes=(written.vote,),
    )


def _is_weight(key: str) -> bool:
    return key.startswith("weight/")
