"""State from and to checkpoints: what a plan resumes from, and what the coordinator is given to keep."""

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass

from dtfm_node.engine.allreduce import Compute
from dtfm_node.engine.stage_state import StageState, load_tensor, state_keys, state_tensors
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor, digest_weights, encode_shard
from dtfm_protocol.errors import Refused
from dtfm_protocol.logs import log
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.data import Bytes, DataPlane
from dtfm_protocol.resolved import ResolvedJob
from dtfm_protocol.transfers import HandIn, fetch_state, hand_in

RETRY_SECONDS = 2.0
CONFIRM_SECONDS = 15.0
"""How long the coordinator may take to say that a checkpoint is whole before it is handed in again."""


async def load_state(
    plane: DataPlane, coordinator: str, job: ResolvedJob, plan: Plan, state: StageState, compute: Compute
) -> None:
    """Bring `state` to what `plan` resumes from: the seed's weights, or a checkpoint's tensors of this stage only.

    Raises:
        ConnectionError, Refused: the coordinator does not give them.
    """
    step = plan.resume_step
    if step == 0 and not job.pretrained:
        await compute(state.initialise)
        return

    async def take(key: str, entry: TensorEntry, data: Bytes) -> None:
        tensor = await compute(decode_tensor, entry, data)
        parameter = state.parameters[key.partition("/")[2]]
        if tensor.shape != parameter.shape:
            raise Refused(f"{key} of step {step} has shape {tuple(tensor.shape)}, not {tuple(parameter.shape)}")
        await compute(load_tensor, state.parameters, state.optimizer, step, key, tensor)

    await fetch_state(plane, coordinator, step, state_keys(list(state.parameters), step), take)


@dataclass(frozen=True)
class Snapshot:
    """A stage's share of a checkpoint."""

    share: HandIn
    data: bytes


def snapshot(state: StageState, plan: Plan, me: str, row: StepMetrics, rows: tuple[StepMetrics, ...]) -> Snapshot:
    """Copy the state after `row`'s step: every replica its digest, the stage's first one the file.

    Args:
        rows: those up to this step that nobody has confirmed yet.
    """
    digest = digest_weights({name: parameter.detach() for name, parameter in state.parameters.items()})
    data = b""
    if plan.replicas(state.index)[0] == me:
        tied_elsewhere = {
            name for bucket in state.buckets if bucket.group == len(plan.stages) for name in bucket.names
        } - (set(state.parameters) if state.is_first else set())
        data = encode_shard(
            {
                key: tensor
                for key, tensor in state_tensors(state.parameters, state.optimizer)
                if key.partition("/")[2] not in tied_elsewhere
            }
        )
    share = HandIn(
        step=row.step,
        plan_version=plan.version,
        stage=state.index,
        digest=digest,
        eval_loss=row.eval_loss,
        rows=rows,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest() if data else None,
    )
    return Snapshot(share, data)


class Keeper:
    """Hands snapshots to the coordinator in the background; a newer one replaces one that is still waiting."""

    def __init__(self, plane: DataPlane, coordinator: str) -> None:
        self._plane, self._coordinator = plane, coordinator
        self._waiting: Snapshot | None = None
        self._held: Snapshot | None = None
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def keep(self, snapshot: Snapshot) -> None:
        """Take over a snapshot."""
        self._waiting = snapshot
        self._idle.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Wait until nothing is left to hand in."""
        await self._idle.wait()

    async def run(self) -> None:
        """Hand in what comes, until cancelled; tries again while the coordinator is away.

        What was handed in is held until the coordinator says that the checkpoint is whole: one that is killed before
        that forgets it, and is given it again.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONFIRM_SECONDS if self._held is not None else None):
                    await self._changed.wait()
            self._changed.clear()
            self._waiting = self._waiting or self._held
            while (current := self._waiting) is not None:
                answer = await self._hand_in(current)
                if answer is None:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._held = current if answer else None
                if self._waiting is current:
                    self._waiting = None
            self._idle.set()

    def confirm(self, step: int) -> None:
        """The coordinator has a whole checkpoint of `step`."""
        if self._held is not None and self._held.share.step <= step:
            self._held = None

    async def _hand_in(self, current: Snapshot) -> bool | None:
        """Whether the coordinator has taken it; None if it did not answer."""
        try:
            receipt = await hand_in(self._plane, self._coordinator, current.share, current.data)
        except (ConnectionError, Refused) as error:
            log.warning("cannot hand in the checkpoint of step %d yet: %s", current.share.step, error)
            return None
        if not receipt.taken:
            log.info("the coordinator did not take step %d: %s", current.share.step, receipt.text)
        return receipt.taken
