"""From one plan to the next on disk, wire and clock: carries out what `PlanChange` decides."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

from dtfm_coordinator.membership.change_signal import ChangeSignal
from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.plan_change.announcements import Announcements, Publisher
from dtfm_coordinator.plan_change.ended_processes import EndedProcesses
from dtfm_coordinator.plan_change.peer_stands import PeerStands
from dtfm_coordinator.plan_change.plan_change import PlanChange
from dtfm_coordinator.plan_change.plan_change_events import (
    Action,
    Begun,
    Call,
    ChangeEvent,
    ChangePhase,
    DoorsFound,
    FindDoors,
    FindEnded,
    Held,
    Hold,
    Lack,
    Offer,
    Present,
    ProcessesEnded,
    Propose,
    Publish,
    Returned,
    Role,
    Seek,
    Stand,
    Stood,
    Wait,
    Write,
    Written,
)
from dtfm_coordinator.plan_change.plan_electors import Electorate
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_protocol.control.messages import Epoch
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.peer_state import PeerState
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS

STEPS_OF_PATIENCE = 5
"""How many predicted steps the step under way may take to end, where that is longer than `Timeouts.step_end`."""

PUT_BACK = (
    "This state folder is a copy of an earlier one: nodes are asked what was done since. Most of those that trained "
    "have to answer before the work is divided anew."
)


class PlanChangeDriver:
    """One coordinator's changes of plan. What is heard is decided on at once; `run` does what takes time."""

    def __init__(
        self,
        folder: Path,
        role: Role,
        members: Members,
        signal: ChangeSignal,
        publish: Publisher,
        say: Callable[[str], Awaitable[None]],
        *,
        is_genuine: Callable[[Plan], bool],
        liveness: EndedProcesses,
    ) -> None:
        """Take up what an earlier life has left in `folder`.

        Args:
            signal: told of all that changes here, and of what `members` hear.
            say: tells people what is waited for.
            is_genuine: whether a plan that a peer shows is a coordinator's.
            liveness: tells whose processes have ended.

        Raises:
            UserError: what is there cannot be read.
        """
        self._folder, self._signal = folder, signal
        self._say, self._liveness = say, liveness
        self._stands = PeerStands(members, is_genuine)
        record = PlanRecord.of(folder)
        if record.is_put_back:
            log.warning("%s", PUT_BACK)
        self._machine = PlanChange.of(role, record.durable)
        self._announcements = Announcements(publish, signal, self._machine.saved.epoch)
        self._deadline = math.inf
        self._plan: Plan | None = None
        """The one that is offered, or else in force."""
        self.follows: Plan | None = None
        """Newest plan that the one which was agreed on last follows; None: the first follows none."""
        self._learnt = record.learnt
        """Plan of which the machine has learnt; None: it has learnt of none."""
        self._hold: Callable[[Plan], None] = lambda _: None
        self._disk: asyncio.Queue[Write | Hold] = asyncio.Queue()
        self._lookups: asyncio.Queue[FindDoors | FindEnded | Lack] = asyncio.Queue()

    @property
    def epoch(self) -> Epoch:
        """What is said to peers."""
        return Epoch(**self._machine.durable.epoch._asdict())

    @property
    def is_followed(self) -> bool:
        """Whether most of those who decide have promised to follow this coordinator."""
        return self._machine.is_followed

    async def run(self) -> None:
        """Write, publish and knock as is decided, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_all())
            tasks.create_task(self._announcements.run())
            while True:
                tasks.create_task(self._look(await self._lookups.get()))

    # -- what is heard

    def heard(self, peer: str, standing: PeerState, taken: Plan | None = None) -> None:
        """A peer said where it stands; a promise counts once it is on the disk.

        Args:
            taken: plan that it shows as taken; it counts where it is a coordinator's.
        """
        stood, before = Stood(peer, standing.promise.version, standing.promise.to), self._machine.durable.learnt
        # Looked at once a promise: else whoever sends forged ones could keep this coordinator busy.
        if taken is not None and self._machine.awaits(stood) and self._stands.is_genuine(taken):
            stood = stood._replace(taken=Electorate.of(taken))
        self._on(stood)
        if self._machine.durable.learnt != before:
            self._learnt = taken

    def started(self, plan: Plan) -> bool:
        """All peers of `plan` hold its state; whether that is news."""
        before = self._machine
        self._on(Begun(Electorate.of(plan)))
        return self._machine is not before

    # -- what is wanted

    def returns(self, plan: Plan) -> None:
        """Take up an earlier life's plan, and say again what it said."""
        self._plan = plan
        self._on(Returned(Electorate.of(plan)))

    async def call(self, *, gently: bool = False, parked: bool = False, patience: float = math.inf) -> int:
        """End every plan so far; the version of the next one.

        Args:
            patience: seconds for which a step under way is waited for at most, where that is less than usual.
        """
        step = self._plan.cost.total if self._plan is not None and self._plan.cost is not None else 0.0
        self._stands.forget()
        patience = min(patience, max(TIMEOUTS.step_end, STEPS_OF_PATIENCE * step))
        epoch, plan = self._machine.durable.epoch, self._plan
        known = max(epoch.called, epoch.in_force, plan.version if plan is not None else 0)
        electors, spares = (plan.electors, plan.idle) if plan is not None else ((), ())
        beyond = self._stands.newest_promise(known, electors, spares)
        self._on(Call(beyond, gently, parked, patience))
        await self._signal.wait(self._is_said)
        point("after-call")
        await self._reach("called")
        if gently and not self._machine.durable.epoch.gently:
            log.info("The step under way does not end: the run goes on without it.")
        await self._signal.wait(self._is_said)
        return self._machine.durable.epoch.called

    async def agree(self) -> dict[str, PeerState]:
        """Wait until the plan that was called for can be the only one; where all who answer stand then.

        Where a peer that answers has taken a later plan than the one in force, another coordinator's, that one may be
        in force: then the new plan must be the only one to follow that one, too.
        """
        self._on(Seek())
        await self._reach("agreed")
        self.follows = self._newest_base()
        return self._stands.promised(self._machine.durable.epoch.called, self._machine.role.me)

    def _newest_base(self) -> Plan | None:
        if not self._machine.bases:
            return None
        base, plan = self._machine.bases[-1].plan, self._plan
        if plan is not None and (plan.version, plan.author) == (base.version, base.author):
            return plan
        return self._learnt

    async def establish(self, plan: Plan, hold: Callable[[Plan], None]) -> bool:
        """Offer `plan`, and put it in force when most electors of the plan before have taken it; whether they have.

        Args:
            hold: writes the plan down; a coordinator that returns must not believe in one before it.
        """
        before, self._plan, self._hold = self._plan, plan, hold
        self._on(Offer(Electorate.of(plan)))
        await self._signal.wait(lambda: self._announcements.proposed == plan.version)
        point("after-plan")
        await self._reach("settled")
        if self._machine.durable.epoch.in_force != plan.version:
            self._plan = before
            return False
        await self._signal.wait(self._is_said)
        return True

    # -- the machine

    def _on(self, event: ChangeEvent) -> None:
        before = self._machine
        self._machine, actions = before.on(event)
        if self._machine.phase != before.phase:
            self._deadline = math.inf
        for action in actions:
            self._take(action)
        if self._machine is not before:
            self._signal.notify()

    def _take(self, action: Action) -> None:
        """Put an action in order."""
        match action:
            case Write() | Hold():
                self._disk.put_nowait(action)
            case Publish(epoch):
                self._announcements.put(epoch)
            case Propose():
                assert self._plan is not None
                self._announcements.put(self._plan)
            case FindDoors() | FindEnded() | Lack():
                self._lookups.put_nowait(action)
            case Wait(seconds):
                self._deadline = self._signal.clock.now() + seconds

    async def _reach(self, phase: ChangePhase) -> None:
        """Tell who is there, again and again, until the change of plan has come so far."""
        clock = self._signal.clock.now
        while self._machine.phase != phase:
            time_is_up = clock() >= self._deadline
            if time_is_up:
                self._deadline = math.inf
            self._on(Present(self._read_stands(), time_is_up))
            if self._machine.phase != phase:
                left = self._deadline - clock()
                await self._signal.change(max(0.0, left) if math.isfinite(left) else None)

    def _read_stands(self) -> tuple[Stand, ...]:
        at_work = self._plan.peers if self._machine.phase == "offered" and self._plan is not None else ()
        return self._stands.read(at_work=at_work)

    def _is_said(self) -> bool:
        return self._announcements.said == self._machine.durable.epoch

    # -- the disk and the network

    async def _write_all(self) -> None:
        """Write one thing after the other: so nothing older is ever written over something newer."""
        while True:
            action = await self._disk.get()
            while True:
                try:
                    self._write(action)
                    break
                except UserError as error:
                    await self._say(f"waiting for room: {error}")
                    await self._signal.clock.sleep(TIMEOUTS.disk_retry)

    def _write(self, action: Write | Hold) -> None:
        """Have it on the disk, unless something newer is to be.

        Raises:
            UserError: there is no room.
        """
        if isinstance(action, Hold):
            assert self._plan is not None
            self._hold(self._plan)
            point("before-in-force")
            self._on(Held())
        elif action.durable == self._machine.durable:
            PlanRecord.keeping(action.durable, self._learnt).save(self._folder)
            self._on(Written(action.durable))

    async def _look(self, action: FindDoors | FindEnded | Lack) -> None:
        match action:
            case FindDoors(plan):
                self._on(DoorsFound(plan.version, await self._liveness.open_at(plan.peers)))
            case FindEnded(version, known):
                self._on(ProcessesEnded(version, await self._liveness.ended(known)))
            case Lack(version, answered, electors):
                await self._say(_lacking(version, answered, electors))


def _lacking(version: int, answered: int, electors: int) -> str:
    """What a coordinator waits for, and what its owner may do."""
    return (
        f"waiting: {answered} of the {electors} that decide on what follows plan {version} have answered, and the "
        "others may be training; if they are gone for good, start with --without-quorum"
    )
