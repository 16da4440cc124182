"""This node's share of each checkpoint, handed in to the coordinator until the checkpoint is whole there."""

import asyncio
import functools
from dataclasses import dataclass
from pathlib import Path

from dtfm_node.links.pacing import UplinkPacer
from dtfm_protocol.checkpoint.transfers import HandIn, hand_in
from dtfm_protocol.errors import Refused
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.stream import DataPlane

UPLOAD_RETRY_SECONDS = 2.0
"""Between two attempts to reach a coordinator that is away."""
CONFIRM_SECONDS = 15.0
"""How long the coordinator may take to say that a checkpoint is whole before it is handed in again."""


@dataclass(frozen=True)
class CheckpointShare:
    """A stage's share of a checkpoint.

    Attributes:
        coordinator: the peer id of the one that it is for.
        file: what follows `message`; None from a replica that only vouches.
    """

    coordinator: str
    message: HandIn
    file: Path | None


class CheckpointUpload:
    """The shares that are on their way: the newest that waits, and the one that was taken and is not confirmed yet.

    What was taken is held until the coordinator says that the checkpoint is whole: one that is killed before that
    forgets it, and is given it again.

    Args:
        retry_seconds: see `UPLOAD_RETRY_SECONDS`.
        confirm_seconds: see `CONFIRM_SECONDS`.
    """

    def __init__(
        self,
        plane: DataPlane,
        uplink: UplinkPacer,
        *,
        retry_seconds: float = UPLOAD_RETRY_SECONDS,
        confirm_seconds: float = CONFIRM_SECONDS,
    ) -> None:
        self._plane, self._uplink = plane, uplink
        self._retry_seconds, self._confirm_seconds = retry_seconds, confirm_seconds
        self._waiting: CheckpointShare | None = None
        self._held: CheckpointShare | None = None
        self._is_overdue = False
        """Whether the held one is to be handed in again."""
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
        """Have `share` handed in, in place of one that waits."""
        self._waiting = share
        self._settled.clear()
        self._changed.set()

    def confirm(self, step: int) -> None:
        """The coordinator has a whole checkpoint of `step`."""
        if self._held is not None and self._held.message.step <= step:
            self._held = None

    def repeat(self) -> None:
        """Have the share handed in again that was taken and is not confirmed; `run` does it every `confirm_seconds`."""
        self._is_overdue = True
        self._changed.set()

    async def run(self) -> None:
        """Hand in what comes, until cancelled; tries again while the coordinator is away."""
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
        """The share to hand in next."""
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
            log.warning("cannot hand in the checkpoint of step %d yet: %s", step, error)
            return None
        if not receipt.taken:
            log.info("the coordinator did not take step %d: %s", step, receipt.text)
        return receipt.taken
