"""Upload of this node's share of each checkpoint, repeated until the checkpoint is whole at the coordinator."""

import asyncio
import functools
from dataclasses import dataclass
from pathlib import Path

from dtfm_node.links.pacing import UplinkPacer
from dtfm_protocol.checkpoint.transfers import HandIn, hand_in
from dtfm_protocol.errors import Refused
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.outage import Outage
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.wire.stream import DataPlane


@dataclass(frozen=True)
class CheckpointShare:
    """Share of a checkpoint that one replica of a stage hands in.

    Attributes:
    coordinator: peer id of the coordinator that it is for.
    file: path of the snapshot that follows `message`; None from a replica that sends hashes only.
    """

    coordinator: str
    message: HandIn
    file: Path | None


class CheckpointUpload:
    """Upload of shares, of which two are kept: the newest that waits, and the one that was taken and is not confirmed
    yet.

    The latter is held until the coordinator says that the checkpoint is whole: a coordinator that is killed before that
    forgets it, and is given it again.

    Args:
        retry_seconds: see `Timeouts.upload_retry`.
        confirm_seconds: see `Timeouts.checkpoint_confirm`.
    """

    def __init__(
        self,
        plane: DataPlane,
        uplink: UplinkPacer,
        *,
        retry_seconds: float = TIMEOUTS.upload_retry,
        confirm_seconds: float = TIMEOUTS.checkpoint_confirm,
    ) -> None:
        self._plane, self._uplink = plane, uplink
        self._retry_seconds, self._confirm_seconds = retry_seconds, confirm_seconds
        self._outage = Outage()
        self._waiting: CheckpointShare | None = None
        self._held: CheckpointShare | None = None
        self._is_overdue = False
        """Whether the share that was taken is to be handed in again, as it was not confirmed."""
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def is_idle(self) -> bool:
        """Whether no share waits that the coordinator has not answered yet."""
        return self._waiting is None

    async def settled(self) -> None:
        """Wait until no share waits."""
        await self._settled.wait()

    def put(self, share: CheckpointShare) -> None:
        """Have `share` handed in, in place of one that still waits."""
        self._waiting = share
        self._settled.clear()
        self._changed.set()

    def confirm(self, step: int) -> None:
        """Let go of the share that was taken, if it is of `step` or before: the coordinator has a whole checkpoint of
        that."""
        if self._held is not None and self._held.message.step <= step:
            self._held = None

    def repeat(self) -> None:
        """Hand in again the share that was taken and is not confirmed; `run` does so every `confirm_seconds`."""
        self._is_overdue = True
        self._changed.set()

    async def run(self) -> None:
        """Hand in what is put here, until cancelled; try again while the coordinator is away."""
        timer: asyncio.TimerHandle | None = None
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while (share := self._due()) is not None:
                    taken = await self._hand_in(share)
                    if taken is None:
                        await asyncio.sleep(self._retry_seconds)
                    else:
                        self._answered(share, taken)
                if timer is not None:
                    timer.cancel()
                if self._held is not None:
                    timer = asyncio.get_running_loop().call_later(self._confirm_seconds, self.repeat)
        finally:
            if timer is not None:
                timer.cancel()

    def _due(self) -> CheckpointShare | None:
        """Return the share to hand in next; None: there is none."""
        return self._waiting or (self._held if self._is_overdue else None)

    def _answered(self, share: CheckpointShare, taken: bool) -> None:
        self._held, self._is_overdue = share if taken else None, False
        if self._waiting is share:
            self._waiting = None
            self._settled.set()

    async def _hand_in(self, share: CheckpointShare) -> bool | None:
        """Whether the coordinator has taken it; None if it did not answer."""
        step = share.message.step
        point("mid-hand-in", step)
        if share.file is not None and not share.file.exists():
            return False  # the swarm has a newer state whole
        try:
            turn = functools.partial(self._uplink.idle, share.coordinator)
            receipt = await hand_in(self._plane, share.coordinator, share.message, share.file or b"", turn)
        except (ConnectionError, Refused, OSError) as error:
            if line := self._outage.fails(f"cannot hand in the checkpoint of step {step} yet: {error}"):
                log.warning("%s", line)
            return None
        if line := self._outage.ends("the coordinator takes checkpoints"):
            log.info("%s", line)
        if not receipt.taken:
            log.info("the coordinator did not take step %d: %s", step, receipt.text)
        return receipt.taken
