"""Checkpoints as the stages hand them in: a file from each stage, a vote from each replica, then one manifest."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dtfm_coordinator.faults.owed_shares import OwedShares
from dtfm_coordinator.records.state_votes import Pairs, at_odds
from dtfm_protocol.checkpoint.draft import Draft
from dtfm_protocol.checkpoint.manifest import File, Manifest, TensorEntry
from dtfm_protocol.checkpoint.state_slots import state_table
from dtfm_protocol.checkpoint.store import CheckpointStore
from dtfm_protocol.checkpoint.transfers import HAND_IN_LIMIT, HandIn, Receipt, receive_file
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.keys import short
from dtfm_protocol.job.job_timeline import TimelineCache
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.job.step_metrics import StepMetrics
from dtfm_protocol.plan.mark import StateDigest
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.state_vote import StateVote, Votes, digest_of_state, vote_of
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts
from dtfm_protocol.wire.stream import Bytes, Stream, read_message, write_message

Kept = Callable[[Manifest], None]
Rows = Callable[[tuple[StepMetrics, ...]], None]
Voted = Callable[[Votes], None]
Accused = Callable[[str, str], None]
"""Is told of a peer that has provably lied, and how, in a line."""
Disputed = Callable[[Pairs, str], None]
"""Is told of two peers that contradict each other, and in what, in a line."""
KEPT = 2
"""Number of newest checkpoints that stay on disk."""
DRAFTS_A_PEER = 2
"""Checkpoints that may lack others' shares while a peer hands in its own: the newest that it has, for it may be a
checkpoint ahead of the others. So no peer fills the disk."""

Described = tuple[File, dict[str, TensorEntry]]
"""A stage's file and its tensors by key, as the manifest has them."""


@dataclass
class _Pending:
    """Checkpoint of which not all is here yet."""

    draft: Draft
    files: dict[int, Described] = field(default_factory=dict)
    """Files that are here, by stage."""
    digests: dict[str, tuple[int, str]] = field(default_factory=dict)
    votes: dict[str, StateVote] = field(default_factory=dict)
    """Vote of each peer on its stage's part of the state, weights and moments."""
    givers: set[str] = field(default_factory=set)
    """Peers that have handed in, or begun to, and have not gone on to newer checkpoints."""
    eval_loss: float | None = None


class CheckpointCollector:
    """Checkpoints that the coordinator collects from the stages and gives to peers (as a `StateSource`)."""

    def __init__(
        self,
        store: CheckpointStore,
        job: ResolvedJob,
        swarm: str,
        clock: Callable[[], float] = time.monotonic,
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        """Nothing is taken before `expect`.

        Args:
            store: keeps what is whole.
            job: tells which checkpoints are due.
            swarm: id for which votes on states are signed.
            clock: by which peers owe their shares.
            timeouts: tells how long they may.
        """
        self._store, self._job, self._swarm = store, job, swarm
        self._timelines = TimelineCache(job)
        self._last_step = job.training.steps
        self.owed = OwedShares(job.training.steps, job.checkpoint.every, clock, timeouts)
        """Shares that peers of the plan in force owe."""
        self._readers: list[tuple[Kept, Rows, Voted]] = []
        self._accused: list[Accused] = []
        self._disputed: list[Disputed] = []
        self._plan: Plan | None = None
        self._kept_step = 0
        self._pending: dict[int, _Pending] = {}
        self._sending: set[str] = set()
        """Peers whose files are coming in."""
        self._whole: dict[int, Manifest] = {}

    def subscribe(self, kept: Kept, rows: Rows, voted: Voted = lambda _: None) -> None:
        """Have `kept` called with every checkpoint that has become whole, and before it `rows` with the metrics and
        `voted` with the votes of each share."""
        self._readers.append((kept, rows, voted))

    def when_accused(self, accused: Accused) -> None:
        """Have `accused` called with each peer that hands in another file than it has signed, and with what it did."""
        self._accused.append(accused)

    def when_disputed(self, disputed: Disputed) -> None:
        """Have `disputed` called where replicas hand in different states, of which no checkpoint is made."""
        self._disputed.append(disputed)

    def expect(self, plan: Plan) -> None:
        """Let only peers of `plan` hand in from now on, and drop what is not whole."""
        self._plan = plan
        timeline = self._timelines.under(plan.amendments)
        self._last_step = timeline.last_step
        self.owed.follow(timeline.last_kept, timeline.last_step)
        self._kept_step = min(self._kept_step, plan.resume.mark.step)
        for pending in self._pending.values():
            pending.draft.discard()
        self._pending.clear()
        self.owed.begin(plan.version, plan.peers)

    @property
    def is_receiving(self) -> bool:
        """Whether a file of a share is coming in."""
        return bool(self._sending)

    def keep_for_good(self, step: int) -> None:
        """Have the checkpoint of `step` never deleted.

        Raises:
            UserError: that cannot be written down.
        """
        self._store.keep_for_good(step)

    def newest(self) -> Manifest | None:
        """Return the newest whole checkpoint; None: there is none."""
        manifest = self._store.newest()
        if manifest is not None:
            self._whole[manifest.step] = manifest
        return manifest

    def certified(self, mark: Mark) -> tuple[StateDigest, ...]:
        """Return the digests of the stages' parts of the checkpoint of `mark`; none if it is not the newest one."""
        manifest = self._whole.get(mark.step)
        if manifest is None or mark_of(manifest) != mark:
            return ()
        found = []
        for file in manifest.files:
            if file.layers is not None:
                hashes = {key: entry.sha256 for key, entry in manifest.tensors.items() if entry.file == file.name}
                found.append(StateDigest(mark=mark, layers=file.layers, digest=digest_of_state(hashes)))
        return tuple(found)

    async def catalogue(self, mark: Mark) -> dict[str, TensorEntry]:
        """Return the tensors of the checkpoint of `mark`, by key, for peers that resume from it; none if it is not
        here."""
        try:
            manifest = self._whole.get(mark.step)
            if manifest is None:
                manifest = self._whole[mark.step] = await asyncio.to_thread(self._store.whole, mark.step)
        except Refused as error:
            log.warning("A machine asked for the model after step %d, which cannot be read here: %s", mark.step, error)
            return {}
        return dict(manifest.tensors) if mark_of(manifest) == mark else {}

    async def read(self, mark: Mark, key: str, offset: int, size: int) -> Bytes | None:
        """Return `size` bytes of one of them from `offset` on; None if it cannot be read."""
        try:
            return await asyncio.to_thread(self._store.read, self._whole[mark.step], key, offset, size)
        except (KeyError, Refused) as error:
            log.warning("A machine asked for %s after step %d, which cannot be read here: %s", key, mark.step, error)
            return None

    async def take(self, stream: Stream) -> None:
        """Answer one peer that hands in its share of a checkpoint.

        Raises:
            Refused: the share offers more bytes than a stage can have, or its file is not what it says.
            UserError: there is no room on this disk; that makes no peer late.
        """
        try:
            await self._take(stream)
        except UserError:
            self.owed.excuse()
            raise

    async def _take(self, stream: Stream) -> None:
        share = await read_message(stream, HandIn, HAND_IN_LIMIT)
        plan = self._plan
        if plan is None:
            return  # this coordinator has just returned and does not know yet; without a receipt, the peer tries again
        if share.plan_version != plan.version or plan.stage_of(stream.peer) != share.stage:
            await write_message(stream, Receipt(taken=False, text="this peer has no such stage in the plan in force"))
            return
        if share.size > self._most_bytes():
            raise Refused(f"{short(stream.peer)} offers {share.size} bytes for a stage")
        if why := self._objection(plan, stream.peer, share):
            await write_message(stream, Receipt(taken=False, text=why))
            return
        mark = _mark_under(plan, share.step)
        vote = vote_of(share.votes, stream.peer, mark, plan.stages[share.stage], self._swarm)
        pending = self._draft(stream.peer, share.step)
        if share.size:
            self._sending.add(stream.peer)
            try:
                await write_message(stream, Receipt(taken=True, text="send the file"))
                pending.files[share.stage] = await self._receive(stream, share, vote, pending)
            except FileNotFoundError:
                if self._pending.get(share.step) is pending:
                    raise
            finally:
                self._sending.discard(stream.peer)
        if self._pending.get(share.step) is not pending:  # its draft is gone: a new plan came while the file did
            await write_message(stream, Receipt(taken=False, text="a newer plan or checkpoint has overtaken this one"))
            return
        for _, take_rows, voted in self._readers:
            take_rows(share.rows)
            voted((vote,))
        pending.votes[stream.peer] = vote
        pending.digests[stream.peer] = (share.stage, share.digest)
        pending.eval_loss = share.eval_loss
        self.owed.given(stream.peer, share.step)
        self._complete(plan, share.step, pending)
        await write_message(stream, Receipt(taken=True, text="kept"))

    def _objection(self, plan: Plan, peer: str, share: HandIn) -> str:
        """Return why a share is not taken now; "" if it is."""
        if share.step <= self._kept_step:
            return "that checkpoint is whole already"
        begins = plan.resume.mark.step
        if share.step < begins or (share.step == begins and begins != self._last_step):
            return "the plan went on from a later step"
        if share.step > self._last_step:
            return "the job has no such step"
        if bool(share.size) != (plan.replicas(share.stage)[0] == peer):
            return "the file comes from the first replica of the stage"
        if share.size and peer in self._sending:
            return "another file of this peer is on its way"
        mine = self._drafts_of(peer)
        if len(mine) >= DRAFTS_A_PEER and share.step < mine[0]:
            return "newer ones of this peer wait for the others"
        return ""

    def _draft(self, peer: str, step: int) -> _Pending:
        """Return the checkpoint of `step` that is being collected, a new one if `peer` is the first to hand in; what it
        handed in for too many earlier ones is of no use any more."""
        pending = self._pending.get(step)
        if pending is None:
            pending = self._pending[step] = _Pending(self._store.draft(step))
        pending.givers.add(peer)
        for older in self._drafts_of(peer)[:-DRAFTS_A_PEER]:
            before = self._pending[older]
            before.givers.discard(peer)
            before.digests.pop(peer, None)
            before.votes.pop(peer, None)
            if not before.givers:
                self._pending.pop(older).draft.discard()
        return pending

    def _drafts_of(self, peer: str) -> list[int]:
        """Return the steps of the unfinished checkpoints to which a peer has given its share, ascending."""
        return sorted(step for step, pending in self._pending.items() if peer in pending.givers)

    async def _receive(self, stream: Stream, share: HandIn, vote: StateVote, pending: _Pending) -> Described:
        """Write a stage's file as it comes, and check its hash, and that it holds what its giver has signed. One that
        is here already stays, and what comes again is not looked at.

        Raises:
            Refused: it does not; its giver is named where that is proven.
        """
        if (here := pending.files.get(share.stage)) is not None:  # what is here must not get lost if this breaks off
            await receive_file(stream, share.size, lambda piece: None)
            return here
        name = f"stage-{share.stage}.safetensors"
        with pending.draft.open(name) as file:
            most = self._most_bytes()

            def take(piece: Bytes) -> None:
                file.write(piece)
                self.owed.came(stream.peer, len(piece), most)

            await receive_file(stream, share.size, take)
            if file.sha256 != share.sha256:
                raise Refused(f"the file of stage {share.stage} from {short(stream.peer)} has another hash")
        described = await asyncio.to_thread(pending.draft.describe, name, vote.layers)
        if digest_of_state({key: entry.sha256 for key, entry in described[1].items()}) != vote.digest:
            why = f"{short(stream.peer)} hands in a part of the model that is not what it has signed"
            self._accuse(stream.peer, why)
            raise Refused(why)
        return described

    def _accuse(self, peer: str, why: str) -> None:
        log.warning("%s", why)
        for accused in self._accused:
            accused(peer, why)

    def _complete(self, plan: Plan, step: int, pending: _Pending) -> None:
        """Commit the checkpoint once every stage's file and every replica's digest is here."""
        if len(pending.files) < len(plan.stages) or len(pending.digests) < len(plan.peers):
            return
        replicas: list[dict[str, str]] = [{} for _ in plan.stages]
        for peer in plan.peers:
            stage, digest = pending.digests[peer]
            replicas[stage][peer] = digest
        for digests in replicas:
            votes = {peer: pending.votes[peer].digest for peer in digests}
            for what, found in (("weights", digests), ("states", votes)):
                if pairs := at_odds(found):
                    names = ", ".join(f"{short(peer)}: {digest[:8]}" for peer, digest in found.items())
                    why = f"machines that compute the same layers hold different {what} after step {step} ({names})"
                    for disputed in self._disputed:
                        disputed(pairs, why)
                    return
        described = [pending.files[stage] for stage in sorted(pending.files)]
        manifest = Manifest(
            job=self._job.name,
            config=self._job.config,
            step=step,
            plan_version=_mark_under(plan, step).plan,
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
            log.warning("Old checkpoints cannot be deleted: %s", error)
        for kept, _, _ in self._readers:
            kept(manifest)

    def _most_bytes(self) -> int:
        """Return the bytes of the largest file that is taken for a stage."""
        from dtfm_protocol.model.model_sizes import model_sizes

        training = self._job.training
        return state_table(training.optimizer, training.weights).most_file_bytes(model_sizes(self._job.config).total)


def _mark_under(plan: Plan, step: int) -> Mark:
    """Return the mark of the state after `step` that peers of `plan` hand in: that which it resumes from, where no step
    is left to train, or one that it has made."""
    return plan.resume.mark if step == plan.resume.mark.step else Mark(step=step, plan=plan.version)


def mark_of(manifest: Manifest) -> Mark:
    """Return the mark of the state that a checkpoint holds."""
    return Mark(step=manifest.step, plan=manifest.plan_version)
