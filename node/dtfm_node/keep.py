"""Keeps states: a snapshot on this node's disk, a copy of it where the plan says, and a share of the coordinator's
checkpoint; all beside training."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from dtfm_node.engine.stage_state import StageState
from dtfm_node.optimizer import state_tensors
from dtfm_node.snapshots import UNSAFE_FILES, Reading, Snapshot, Snapshots, write_snapshot
from dtfm_node.uplink import Uplink
from dtfm_protocol.checkpoint.shard import digest_weights, tensor_entry
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.faults import point
from dtfm_protocol.identity import short
from dtfm_protocol.logs import log
from dtfm_protocol.metrics import StepMetrics
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.data import DataPlane, Stream, read_message, write_message
from dtfm_protocol.standing import Mark
from dtfm_protocol.transfers import Deposit, HandIn, Receipt, deposit, hand_in

RETRY_SECONDS = 2.0
CONFIRM_SECONDS = 15.0
"""How long the coordinator may take to say that a checkpoint is whole before it is handed in again."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class Share:
    """A stage's share of a checkpoint."""

    coordinator: str
    message: HandIn
    file: Path | None


@dataclass(frozen=True)
class _Due:
    """A state that is to be kept."""

    state: StageState
    mark: Mark
    plan: Plan
    row: StepMetrics
    rows: tuple[StepMetrics, ...]
    handed_in: bool
    last: bool
    is_first_replica: bool
    to_write: dict[str, torch.Tensor]
    to_read: dict[str, torch.Tensor]
    norm: float | None

    def reading(self) -> Reading:
        """Have it read before it is updated."""
        reading = Reading(self.to_read)
        self.state.before_update = reading.settle
        return reading


class Keeper:
    """Writes snapshots, gives copies of them away, and hands in checkpoints; a newer one replaces one that waits."""

    def __init__(self, plane: DataPlane, uplink: Uplink, snapshots: Snapshots, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._plane, self._uplink, self.snapshots = plane, uplink, snapshots
        self.safe = Mark()
        """The newest state that the swarm has whole, on disks of several peers or of the coordinator."""
        self.copied_bytes = 0
        """Given to shadows so far."""
        self._disk = ThreadPoolExecutor(1, "disk")
        self._writing: asyncio.Task[None] | None = None
        self._waiting: Share | None = None
        self._held: Share | None = None
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._copies: asyncio.Queue[tuple[Plan, str, Snapshot]] = asyncio.Queue()
        self._plan: Plan | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when there is another snapshot here."""

    def serve(self, plan: Plan) -> None:
        """From now on keep copies for those whom `plan` gives this node as their shadow."""
        self._plan = plan

    async def keep(
        self,
        state: StageState,
        plan: Plan,
        row: StepMetrics,
        rows: tuple[StepMetrics, ...],
        *,
        handed_in: bool,
        copied: bool,
        last: bool,
    ) -> None:
        """Begin to keep the present state, that after `row`'s step; the one before must be written first.

        Args:
            rows: the metrics up to this step that nobody has confirmed yet.
            handed_in: whether it is due as the coordinator's checkpoint.
            copied: whether it is due on peers' disks.
            last: whether no step follows: where there is no room for it now, it is tried again until there is.
        """
        if not handed_in and self.snapshots.unsafe(self.safe) >= UNSAFE_FILES:
            log.info("no snapshot of step %d: those before are still on their way to other peers", row.step)
            return
        await self.written()
        tensors = dict(state_tensors(state.parameters, state.optimizer))
        tied = frozenset() if state.is_first else state.shared
        is_first_replica = plan.replicas(state.index)[0] == self._plane.peer_id
        to_write = {
            key: tensor
            for key, tensor in tensors.items()
            if (copied or is_first_replica) and key.partition("/")[2] not in tied
        }
        to_read = {key: tensor for key, tensor in tensors.items() if key in to_write or _is_weight(key)}
        assert state.mark is not None, "nobody keeps what is no state"
        due = _Due(state, state.mark, plan, row, rows, handed_in, last, is_first_replica, to_write, to_read, state.norm)
        self._idle.clear()
        reading = due.reading()
        self._writing = asyncio.create_task(self._keep(due, reading))

    async def written(self) -> None:
        """Wait until no snapshot is being written."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written or waits to be handed in."""
        return self._idle.is_set()

    async def save(self, state: StageState, rows: tuple[StepMetrics, ...]) -> None:
        """Write a state of this node's to its disk, now."""
        await self.written()
        assert state.mark is not None
        if self.snapshots.has(state.mark, state.layers):
            return
        tensors = dict(state_tensors(state.parameters, state.optimizer))
        arguments = (self.snapshots.folder, state.mark, state.layers, tensors, Reading(tensors), state.norm, rows)
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, write_snapshot, *arguments)
        except UserError as error:
            log.warning("%s", error)

    async def settled(self) -> None:
        """Wait until nothing is left to write or to hand in."""
        await self.written()
        await self._idle.wait()

    async def _keep(self, due: _Due, reading: Reading) -> None:
        """Write what is due, and have it handed on."""
        written = await self._write(due, reading)
        if written is None:
            self._rest()
            return
        snapshot, hashes = written
        shadow = due.plan.shadow_of(due.state.index)
        if snapshot is not None and shadow is not None and due.is_first_replica:
            self._copies.put_nowait((due.plan, shadow, snapshot))
        if due.handed_in:
            self._waiting = self._share(due, snapshot if due.is_first_replica else None, hashes)
            self._changed.set()
        else:
            self._rest()

    async def _write(self, due: _Due, reading: Reading) -> tuple[Snapshot | None, dict[str, str]] | None:
        """Write a snapshot, or only hash the weights where this node is to write none; None if there is no room."""
        run = functools.partial(asyncio.get_running_loop().run_in_executor, self._disk)
        if not due.to_write:
            return None, await run(_hashes, reading)
        while True:
            try:
                snapshot, hashes = await run(
                    write_snapshot, self.snapshots.folder, due.mark, due.state.layers, due.to_write, reading,
                    due.norm, due.rows,
                )  # fmt: skip
            except UserError as error:
                # Training goes on: a full disk takes away what a fault could go back to, not the state itself.
                log.warning("%s; there is no snapshot of step %d", error, due.row.step)
                if not due.last:
                    return None
                await asyncio.sleep(RETRY_SECONDS)
                reading = due.reading()
            else:
                self.snapshots.add(snapshot)
                self.on_change()
                return snapshot, hashes

    def _share(self, due: _Due, snapshot: Snapshot | None, hashes: dict[str, str]) -> Share:
        """What the coordinator is given."""
        message = HandIn(
            step=due.row.step,
            plan_version=due.plan.version,
            stage=due.state.index,
            digest=digest_weights({key: value for key, value in hashes.items() if _is_weight(key)}),
            eval_loss=due.row.eval_loss,
            rows=due.rows,
            size=snapshot.bytes if snapshot else 0,
            sha256=snapshot.sha256 if snapshot else None,
        )
        file = self.snapshots.folder / f"{snapshot.stem}.safetensors" if snapshot else None
        return Share(due.plan.author, message, file)

    def _rest(self) -> None:
        """Nothing is being written; if nothing waits, there is nothing to do."""
        if self._waiting is None:
            self._idle.set()

    def close(self) -> None:
        """End the disk's thread."""
        self._disk.shutdown(wait=True)

    async def run(self) -> None:
        """Give away what comes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hand_in_all())
            tasks.create_task(self._copy_all())

    async def _hand_in_all(self) -> None:
        """Hand in checkpoints; tries again while the coordinator is away.

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
            if self._writing is None or self._writing.done():
                self._rest()

    def confirm(self, step: int, safe: Mark) -> None:
        """The coordinator has a whole checkpoint of `step`; the swarm has all of `safe`."""
        if self._held is not None and self._held.message.step <= step:
            self._held = None
        if safe.order > self.safe.order:
            self.safe = safe
            self.snapshots.prune(safe)

    async def _hand_in(self, current: Share) -> bool | None:
        """Whether the coordinator has taken it; None if it did not answer."""
        step = current.message.step
        point("mid-hand-in", step)
        if current.file is not None and not current.file.exists():
            return False  # the swarm has a newer state whole
        try:
            turn = functools.partial(self._uplink.idle, current.coordinator)
            receipt = await hand_in(self._plane, current.coordinator, current.message, current.file or b"", turn)
        except (ConnectionError, Refused, OSError) as error:
            log.warning("cannot hand in the checkpoint of step %d yet: %s", step, error)
            return None
        if not receipt.taken:
            log.info("the coordinator did not take step %d: %s", step, receipt.text)
        return receipt.taken

    async def _copy_all(self) -> None:
        """Give snapshots to shadows; only the newest, where they come faster than they go."""
        while True:
            plan, shadow, snapshot = await self._copies.get()
            if not self._copies.empty():
                continue
            offer = Deposit(
                plan_version=plan.version,
                mark=snapshot.mark,
                layers=snapshot.layers,
                size=snapshot.bytes,
                sha256=snapshot.sha256,
            )
            file = self.snapshots.folder / f"{snapshot.stem}.safetensors"
            try:
                receipt = await deposit(self._plane, shadow, offer, file, functools.partial(self._uplink.idle, shadow))
            except (ConnectionError, Refused, OSError) as error:
                log.info("%s did not get a copy of step %d: %s", short(shadow), snapshot.mark.step, error)
                continue
            self.copied_bytes += snapshot.bytes if receipt.taken else 0
            log.debug("a copy of step %d at %s: %s", snapshot.mark.step, short(shadow), receipt.text)

    async def take_copy(self, stream: Stream) -> None:
        """Answer a `deposit`.

        Raises:
            Refused: what comes is not what was announced.
        """
        offer = await read_message(stream, Deposit)
        plan = self._plan
        stage = plan.stage_of(stream.peer) if plan is not None else None
        if plan is None or stage is None or plan.shadow_of(stage) != self._plane.peer_id:
            await write_message(stream, Receipt(taken=False, text="this peer is no shadow of that one"))
            return
        if offer.layers != plan.stages[stage] or offer.size > self._most_bytes:
            raise Refused(f"{short(stream.peer)} offers a snapshot that is not of its stage")
        if self.snapshots.has(offer.mark, offer.layers):
            await write_message(stream, Receipt(taken=False, text="it is here already"))
            return
        await write_message(stream, Receipt(taken=True, text="send it"))
        path = self.snapshots.folder / f".coming-{offer.mark.step}-{offer.layers[0]}"
        try:
            with path.open("wb") as file:
                for offset in range(0, offer.size, _PIECE):
                    file.write(await stream.read(min(_PIECE, offer.size - offset)))
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            snapshot = await asyncio.to_thread(self.snapshots.adopt, path, offer.mark, offer.layers, offer.sha256)
            self.snapshots.add(snapshot)
            self.on_change()
        except (OSError, UserError) as error:
            log.warning("cannot keep a copy for %s: %s", short(stream.peer), error)
            await write_message(stream, Receipt(taken=False, text="no room"))
            return
        finally:
            path.unlink(missing_ok=True)
        await write_message(stream, Receipt(taken=True, text="kept"))


def _is_weight(key: str) -> bool:
    return key.startswith("weight/")


def _hashes(reading: Reading) -> dict[str, str]:
    """The hash of each tensor that `reading` reads."""
    hashes: dict[str, str] = {}

    def look(key: str, tensor: torch.Tensor) -> None:
        hashes[key] = tensor_entry("weights.safetensors", tensor)[0].sha256

    reading.visit(look)
    return hashes
