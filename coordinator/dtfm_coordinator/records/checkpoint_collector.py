"""Checkpoints as the stages hand them in: a file from each stage, a digest from each replica, then one manifest."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from dtfm_protocol.checkpoint.draft import Draft
from dtfm_protocol.checkpoint.manifest import Manifest, TensorEntry
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import HAND_IN_LIMIT, HandIn, Receipt, receive_file
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import Bytes, Stream, read_message, write_message

Kept = Callable[[Manifest], None]
Rows = Callable[[tuple[StepMetrics, ...]], None]
KEPT = 2
"""Number of newest checkpoints that stay on disk."""


@dataclass
class _Pending:
    """Checkpoint of which not all is here yet."""

    draft: Draft
    files: set[int] = field(default_factory=set)
    digests: dict[str, tuple[int, str]] = field(default_factory=dict)
    eval_loss: float | None = None


class CheckpointCollector:
    """Checkpoints that the coordinator collects from the stages and gives to peers (as a `StateSource`)."""

    def __init__(self, store: CheckpointStore, job: ResolvedJob) -> None:
        self._store, self._job = store, job
        self._readers: list[tuple[Kept, Rows]] = []
        self._plan: Plan | None = None
        self._kept_step = 0
        self._pending: dict[int, _Pending] = {}
        self._whole: dict[int, Manifest] = {}
        self.fault: str | None = None
        """Reason why the run must not go on: replicas that differ; None: there is none."""

    def subscribe(self, kept: Kept, rows: Rows) -> None:
        """Have `kept` called with every checkpoint that has become whole, and `rows` before it with the metrics of each
        share."""
        self._readers.append((kept, rows))

    def expect(self, plan: Plan) -> None:
        """Let only peers of `plan` hand in from now on, and drop what is not whole."""
        self._plan = plan
        self._kept_step = min(self._kept_step, plan.resume.mark.step)
        for pending in self._pending.values():
            pending.draft.discard()
        self._pending.clear()

    def newest(self) -> Manifest | None:
        """Return the newest whole checkpoint; None: there is none."""
        return self._store.newest()

    async def catalogue(self, mark: Mark) -> dict[str, TensorEntry]:
        """Return the tensors of the checkpoint of `mark`, by key, for peers that resume from it; none if it is not
        here."""
        try:
            manifest = self._whole.get(mark.step)
            if manifest is None:
                manifest = self._whole[mark.step] = await asyncio.to_thread(self._store.whole, mark.step)
        except Refused as error:
            log.warning("cannot give the state after step %d: %s", mark.step, error)
            return {}
        return dict(manifest.tensors) if mark_of(manifest) == mark else {}

    async def read(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        """Return `size` bytes of one of them from `offset` on; None if it cannot be read."""
        try:
            return await asyncio.to_thread(self._store.read, self._whole[mark.step], key, offset, size)
        except (KeyError, Refused) as error:
            log.warning("cannot give %s of step %d: %s", key, mark.step, error)
            return None

    async def take(self, stream: Stream) -> None:
        """Answer one peer that hands in its share of a checkpoint.

        Raises:
            Refused: the share offers more bytes than a stage can have, or its file is not what it says.
        """
        share = await read_message(stream, HandIn, HAND_IN_LIMIT)
        plan = self._plan
        if plan is None:
            return  # this coordinator has just returned and does not know yet; without a receipt, the peer tries again
        if share.plan_version != plan.version or plan.stage_of(stream.peer) != share.stage:
            await write_message(stream, Receipt(taken=False, text="this peer has no such stage in the plan in force"))
            return
        if share.step <= self._kept_step:
            await write_message(stream, Receipt(taken=False, text="that checkpoint is whole already"))
            return
        if share.size > 16 * self._job_bytes():
            raise Refused(f"{short(stream.peer)} offers {share.size} bytes for a stage")
        pending = self._pending.get(share.step)
        if pending is None:
            pending = self._pending.setdefault(share.step, _Pending(self._store.draft(share.step)))
        if share.size:
            await write_message(stream, Receipt(taken=True, text="send the file"))
            try:
                await self._receive(stream, share, pending)
            except FileNotFoundError:
                if self._pending.get(share.step) is pending:
                    raise
            pending.files.add(share.stage)
        if self._pending.get(share.step) is not pending:  # its draft is gone: a new plan came while the file did
            await write_message(stream, Receipt(taken=False, text="a newer plan or checkpoint has overtaken this one"))
            return
        for _, take_rows in self._readers:
            take_rows(share.rows)
        pending.digests[stream.peer] = (share.stage, share.digest)
        pending.eval_loss = share.eval_loss
        self._complete(plan, share.step, pending)
        await write_message(stream, Receipt(taken=True, text="kept"))

    async def _receive(self, stream: Stream, share: HandIn, pending: _Pending) -> None:
        """Write a stage's file as it comes, and check its hash."""
        with pending.draft.open(f"stage-{share.stage}.safetensors") as file:
            await receive_file(stream, share.size, file.write)
            if file.sha256 != share.sha256:
                raise Refused(f"the file of stage {share.stage} from {short(stream.peer)} has another hash")

    def _complete(self, plan: Plan, step: int, pending: _Pending) -> None:
        """Commit the checkpoint once every stage's file and every replica's digest is here."""
        if len(pending.files) < len(plan.stages) or len(pending.digests) < len(plan.peers):
            return
        replicas: list[dict[str, str]] = [{} for _ in plan.stages]
        for peer in plan.peers:
            stage, digest = pending.digests[peer]
            replicas[stage][peer] = digest
        for stage, digests in enumerate(replicas):
            if len(set(digests.values())) > 1:
                names = ", ".join(f"{short(peer)}: {digest[:8]}" for peer, digest in digests.items())
                self.fault = f"the replicas of stage {stage} hold different weights after step {step} ({names})"
                return
        described = [
            pending.draft.describe(f"stage-{stage}.safetensors", plan.stages[stage]) for stage in sorted(pending.files)
        ]
        manifest = Manifest(
            job=self._job.name,
            config=self._job.config,
            step=step,
            plan_version=plan.version,
            files=tuple(file for file, _ in described),
            tensors={key: entry for _, entries in described for key, entry in entries.items()},
            replicas=tuple(replicas),
            eval_loss=pending.eval_loss,
        )
        pending.draft.commit(manifest)
        del self._pending[step]
        for older in [other for other in self._pending if other < step]:
            self._pending.pop(older).draft.discard()
        self._whole = {step: manifest}
        self._kept_step = step
        try:
            self._store.prune(KEPT)
        except UserError as error:
            log.warning("cannot delete old checkpoints: %s", error)
        for kept, _ in self._readers:
            kept(manifest)

    def _job_bytes(self) -> int:
        """Return the bytes of the whole model's weights in fp32."""
        from dtfm_protocol.model.model_sizes import model_sizes

        return 4 * model_sizes(self._job.config).total


def mark_of(manifest: Manifest) -> Mark:
    """Return the mark of the state that a checkpoint holds."""
    return Mark(step=manifest.step, plan=manifest.plan_version)
