"""State from and to checkpoints: what a plan resumes from, and what the coordinator is given to keep."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path

from dtfm_node.engine.machine import Compute
from dtfm_node.engine.stage_state import StageState
from dtfm_node.optimizer import load_tensor, state_keys, state_tensors
from dtfm_node.uplink import Uplink
from dtfm_protocol.checkpoint.manifest import TensorEntry
from dtfm_protocol.checkpoint.shard import decode_tensor, digest_weights, write_shard
from dtfm_protocol.errors import Refused, UserError
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
    file: Path | None


def snapshot(
    state: StageState, plan: Plan, me: str, row: StepMetrics, rows: tuple[StepMetrics, ...], folder: Path
) -> Snapshot:
    """Copy the state after `row`'s step: every replica its digest, the stage's first one a file in `folder`.

    On disk, as a copy in memory would take three quarters of what training takes.

    Args:
        rows: those up to this step that nobody has confirmed yet.

    Raises:
        UserError: there is no room for the file.
    """
    digest = digest_weights({name: parameter.detach() for name, parameter in state.parameters.items()})
    file, size, sha256 = None, 0, None
    if plan.replicas(state.index)[0] == me:
        tied_elsewhere = frozenset() if state.is_first else state.shared
        file = folder / f"plan-{plan.version}-step-{row.step}.safetensors"
        tensors = {
            key: tensor
            for key, tensor in state_tensors(state.parameters, state.optimizer)
            if key.partition("/")[2] not in tied_elsewhere
        }
        try:
            size, sha256 = write_shard(tensors, file)
        except OSError as error:
            file.unlink(missing_ok=True)
            raise UserError(f"cannot write a checkpoint to {folder}: {error}: make room, and join again") from None
    share = HandIn(
        step=row.step,
        plan_version=plan.version,
        stage=state.index,
        digest=digest,
        eval_loss=row.eval_loss,
        rows=rows,
        size=size,
        sha256=sha256,
    )
    return Snapshot(share, file)


class Keeper:
    """Hands snapshots to the coordinator in the background; a newer one replaces one that is still waiting."""

    def __init__(self, plane: DataPlane, coordinator: str, uplink: Uplink, folder: Path) -> None:
        self._plane, self._coordinator, self._uplink = plane, coordinator, uplink
        self.folder = folder
        """Where snapshots lie until the coordinator has them."""
        folder.mkdir(exist_ok=True)
        self._sending: Snapshot | None = None
        self._waiting: Snapshot | None = None
        self._held: Snapshot | None = None
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sweep()

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
                self._sending = current
                answer = await self._hand_in(current)
                self._sending = None
                if answer is None:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._held = current if answer else None
                if self._waiting is current:
                    self._waiting = None
            self._idle.set()
            self._sweep()

    def _sweep(self) -> None:
        """Take away the files that nobody will be given any more."""
        wanted = {one.file for one in (self._sending, self._waiting, self._held) if one is not None}
        for file in self.folder.glob("*.safetensors"):
            if file not in wanted:
                file.unlink(missing_ok=True)

    def confirm(self, step: int) -> None:
        """The coordinator has a whole checkpoint of `step`."""
        if self._held is not None and self._held.share.step <= step:
            self._held = None
            self._sweep()

    async def _hand_in(self, current: Snapshot) -> bool | None:
        """Whether the coordinator has taken it; None if it did not answer."""
        try:
            receipt = await hand_in(
                self._plane, self._coordinator, current.share, current.file or b"", self._uplink.idle
            )
        except (ConnectionError, Refused) as error:
            log.warning("cannot hand in the checkpoint of step %d yet: %s", current.share.step, error)
            return None
        if not receipt.taken:
            log.info("the coordinator did not take step %d: %s", current.share.step, receipt.text)
        return receipt.taken
