"""Messages of coordinators: the job, plans, which of them is in force, the swarm's phase, whose links to measure."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import NoReturn

from dtfm_node.control.display import Display
from dtfm_node.control.latest_plan import Heard, HeardCall, HeardPlan
from dtfm_node.control.reporter import Reporter
from dtfm_node.control.swarm_phase import SwarmPhase
from dtfm_protocol.control.messages import (
    ANSWERS,
    CHALLENGE,
    EPOCH,
    JOB,
    LEDGER,
    MEMBERSHIP,
    PHASE,
    PLAN,
    PROBE,
    Answers,
    Challenge,
    Epoch,
    Ledger,
    MembershipNews,
    Phase,
    ProbeRound,
    Topic,
)
from dtfm_protocol.control.mqtt import ControlPlane
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.job.resolved_job import ResolvedJob
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.clock import MonotonicClock
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.product_version import product_version
from dtfm_protocol.process.version_agreement import Distance, distance, told_to_node


class Inbox:
    """Receiver of the coordinators' messages, which lets others wait for them."""

    def __init__(self, invite: Invite, me: str, display: Display, reporter: Reporter, session: str = "") -> None:
        """Nothing is heard before `read`.

        Args:
            session: random text of this run of the node, with which it challenges coordinators.
        """
        self.rounds: asyncio.Queue[ProbeRound] = asyncio.Queue()
        self.comings: asyncio.Queue[ProbeRound] = asyncio.Queue()
        """Rounds with a layout that is to come."""
        self._round_number, self._plans = 0, asyncio.Event()
        """Rounds that have come, and the event that a plan is being made, or one for this node has come."""
        self.changed = asyncio.Event()
        """Event that is set whenever a coordinator has said something new; whoever waits clears it."""
        self.plan: Plan | None = None
        """Plan of the highest version that has come, verified; None before the first."""
        self.heard = Heard()
        """Plain values of that plan and of the newest `Epoch`, as they decide whom this node follows."""
        self._invite, self._me, self._display, self._reporter = invite, me, display, reporter
        self._job: ResolvedJob | None = None
        self._job_came = asyncio.Event()
        self._session = session
        self._phase = SwarmPhase()
        self._challenged: dict[str, str] = {}
        """Session of each coordinator, by peer id, that this node has asked for a sign of life last."""
        self._challenge: Callable[[], Awaitable[None]] | None = None
        self._told_of_kept: list[Callable[[int, Mark], None]] = []
        self._misfit, self._misfit_known = "", asyncio.Event()
        """Why this node cannot go on, once that is known."""
        self.sent_away = asyncio.Event()
        """Event that is set once the owner has sent this node away, since it began."""
        self._kicked_at, self._informants = 0.0, set[str]()
        """When this node was kicked last, as far as was said, and which coordinators have told of kicks."""
        self._admission: Admission | None = None
        self._coordinators: Collection[str] = invite.coordinators

    def knows(self, admission: Admission) -> None:
        """Have `admission` follow what coordinators say of who is a member. Call it before `read`."""
        self._admission, self._coordinators = admission, admission.coordinators

    def when_kept(self, told: Callable[[int, Mark], None]) -> None:
        """Call `told` whenever the coordinator says them with the step of its newest whole checkpoint and the newest
        safe state."""
        self._told_of_kept.append(told)

    def read(self, control: ControlPlane) -> None:
        """Subscribe to all topics that coordinators write."""
        control.on(MEMBERSHIP, self._take_membership)  # first: it says whose word the rest is
        control.on(JOB, self._take_job)
        control.on(PLAN, self._take_plan)
        control.on(EPOCH, self._take_epoch)
        control.on(PHASE, self._take_phase)
        control.on(ANSWERS, self._take_answers)
        control.on(LEDGER, self._take_ledger)
        control.on(PROBE, self._take_round)
        self._challenge = partial(control.publish, CHALLENGE, Challenge(session=self._session))

    async def job(self) -> ResolvedJob:
        """Return the swarm's job, once it is known."""
        await self._job_came.wait()
        assert self._job is not None
        return self._job

    async def until_calm(self, seconds: float, clock: MonotonicClock) -> None:
        """Wait for a time at which links are hardly measured: a plan is being made, or one for this node has come, or
        no round of measurements has come for so many seconds."""
        while True:
            number = self._round_number
            with contextlib.suppress(TimeoutError):
                async with clock.timeout(seconds):
                    await self._plans.wait()
            if self._plans.is_set() or number == self._round_number:
                return

    def cannot_read(self, topic: Topic, error: Refused) -> None:
        """Take that a coordinator has said what this version cannot read: without a job or a plan it is of no use."""
        if topic in {JOB, PLAN}:
            self._fits_not(
                f"this machine has dtfm {product_version()} and cannot follow the swarm's {error}: install the version "
                "that its coordinator has, and start the node again"
            )

    def _fits_not(self, why: str) -> None:
        self._misfit = self._misfit or why
        self._misfit_known.set()

    async def until_misfit(self) -> NoReturn:
        """Wait until this node turns out not to fit the swarm, if it does.

        Raises:
            UserError: its version does not work together with the coordinator's, or with what is trained.
        """
        await self._misfit_known.wait()
        raise UserError(self._misfit)

    @property
    def is_over(self) -> bool:
        """Whether there will be no more plans, because the job is done.

        Raises:
            UserError: the swarm has failed.
        """
        phase = self._phase.ending(self.heard.call.called)
        if phase is not None and phase.name == "failed":
            raise UserError(f"the swarm has stopped: {phase.text}")
        return phase is not None

    @property
    def last_words(self) -> str:
        """The swarm's phase in words for people; "" before the first."""
        return self._phase.phase.text if self._phase.phase is not None else ""

    def _take_job(self, _: str, job: ResolvedJob) -> None:
        if self._job is None:
            self._job = job
            self._job_came.set()
        elif job != self._job:
            log.warning("the swarm's job has changed; this node keeps to the one it joined for: start it again")

    def _take_plan(self, _: str, plan: Plan) -> None:
        trains = plan.stage_of(self._me) is not None
        heard = self.heard.with_plan(HeardPlan(plan.version, plan.author, trains))
        if heard is not self.heard:
            plan.verify(self._coordinators, self._invite.swarm)
            self.plan, self.heard = plan, heard
            self._let_peers_in()
            if trains:
                self._plans.set()
            self.changed.set()

    def _take_epoch(self, sender: str, epoch: Epoch) -> None:
        call = HeardCall(epoch.called, epoch.gently, epoch.parked, epoch.in_force, epoch.started, sender)
        heard = self.heard.with_call(call)
        if heard is not self.heard:
            self.heard = heard
            self._let_peers_in()
            self.changed.set()

    def _take_phase(self, sender: str, phase: Phase) -> Awaitable[None] | None:
        """Note the phase; have its coordinator challenged where it has not shown yet that this run of it lives."""
        self._display.phase(phase)
        self._phase = self._phase.heard(sender, phase)
        if phase.name == "planning":
            self._plans.set()
        self.changed.set()
        is_asked = self._challenged.get(sender) == phase.session and phase.name not in {"done", "failed"}
        if self._challenge is None or is_asked or not self._phase.is_doubtful:
            return None
        self._challenged[sender] = phase.session
        return self._challenge()

    def _take_answers(self, sender: str, answers: Answers) -> None:
        if self._session in answers.to:
            self._meet(answers.version)
            self._phase = self._phase.answered(sender, answers.session)
            self.changed.set()

    def _meet(self, version: str) -> None:
        """Take the version of a coordinator that lives; tell what there is to say of it."""
        self._display.coordinator_version, before = version, self._display.coordinator_version
        said = told_to_node(product_version(), version)
        if distance(product_version(), version) is Distance.FAR:
            self._fits_not(said)
        elif said and version != before:
            self._display.note(said)

    def _let_peers_in(self) -> None:
        """A plan in force admits its peers, whenever their credentials expire."""
        plan = self.plan
        if self._admission is not None and plan is not None and plan.version == self.heard.call.in_force:
            self._admission.follow({*plan.peers, *plan.idle})

    def _take_membership(self, sender: str, news: MembershipNews) -> None:
        if self._admission is not None:
            self._admission.trust_all(bytes.fromhex(authority) for authority in news.authorities)
            self._admission.ban(news.bans, news.rulings)
            for one in news.kicked:
                self._admission.kick(one.peer, one.at)
        mine = max((one.at for one in news.kicked if one.peer == self._me), default=0.0)
        # The first word of each coordinator may tell of kicks from before this start; clocks may differ.
        if mine > self._kicked_at and sender in self._informants:
            self.sent_away.set()
        self._kicked_at = max(self._kicked_at, mine)
        self._informants.add(sender)

    def _take_ledger(self, _: str, ledger: Ledger) -> None:
        self._reporter.forget(recorded=ledger.recorded)
        for told in self._told_of_kept:
            told(ledger.kept, ledger.safe)
        self.changed.set()

    async def _take_round(self, _: str, turn: ProbeRound) -> None:
        self._round_number += turn.coming is None
        (self.rounds if turn.coming is None else self.comings).put_nowait(turn)
