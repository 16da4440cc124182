"""What the coordinator has said: the job, the newest plan, the swarm's phase, whose links to measure."""

import asyncio
from collections.abc import Callable

from dtfm_node.display import Display
from dtfm_node.journal import Journal
from dtfm_protocol.control import JOB, LEDGER, PHASE, PLAN, PROBE, Ledger, Phase, ProbeRound
from dtfm_protocol.errors import UserError
from dtfm_protocol.invite import Invite
from dtfm_protocol.logs import log
from dtfm_protocol.plan import Plan
from dtfm_protocol.planes.control import ControlPlane
from dtfm_protocol.resolved import ResolvedJob


class Bulletin:
    """Takes the coordinator's messages, and lets others wait for them."""

    def __init__(self, invite: Invite, display: Display, journal: Journal) -> None:
        self.rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
        self.on_kept: Callable[[int], None] = lambda _: None
        """Called with the step of the coordinator's newest whole checkpoint."""
        self._invite, self._display, self._journal = invite, display, journal
        self._job: ResolvedJob | None = None
        self._plan: Plan | None = None
        self._phase: Phase | None = None
        self._changed = asyncio.Condition()

    def read(self, control: ControlPlane) -> None:
        """Subscribe to all that the coordinator writes."""
        control.on(JOB, self._take_job)
        control.on(PLAN, self._take_plan)
        control.on(PHASE, self._take_phase)
        control.on(LEDGER, self._take_ledger)
        control.on(PROBE, self._take_round)

    async def job(self) -> ResolvedJob:
        """The swarm's job, once it is known."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._job is not None)
        assert self._job is not None
        return self._job

    async def next_plan(self, served: int) -> Plan | None:
        """Wait for a plan after version `served`; None when there will be none, because the job is done.

        Raises:
            UserError: the swarm has failed.
        """

        def ready() -> bool:
            return self._is_over() or (self._plan is not None and self._plan.version > served)

        async with self._changed:
            await self._changed.wait_for(ready)
        if self._phase is not None and self._phase.name == "failed":
            raise UserError(f"the swarm has stopped: {self._phase.text}")
        return None if self._is_over() else self._plan

    @property
    def last_words(self) -> str:
        """The swarm's phase, for people."""
        return self._phase.text if self._phase is not None else ""

    def _is_over(self) -> bool:
        return self._phase is not None and self._phase.name in {"done", "failed"}

    async def _take_job(self, _: str, job: ResolvedJob) -> None:
        if self._job is not None:
            if job != self._job:
                log.warning("the swarm's job has changed; this node keeps to the one it joined for: start it again")
            return
        async with self._changed:
            self._job = job
            self._changed.notify_all()

    async def _take_plan(self, _: str, plan: Plan) -> None:
        if self._plan is not None and plan.version <= self._plan.version:
            return  # repeated after a reconnection, or older than what is in force
        plan.verify(self._invite.coordinator, self._invite.swarm)
        async with self._changed:
            self._plan = plan
            self._changed.notify_all()

    async def _take_phase(self, _: str, phase: Phase) -> None:
        self._display.phase(phase)
        async with self._changed:
            self._phase = phase
            self._changed.notify_all()

    async def _take_ledger(self, _: str, ledger: Ledger) -> None:
        self._journal.forget(recorded=ledger.recorded)
        self.on_kept(ledger.kept)

    async def _take_round(self, _: str, turn: ProbeRound) -> None:
        self.rounds.put_nowait(turn)
