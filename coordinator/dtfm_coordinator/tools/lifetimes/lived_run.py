"""Run of a job in virtual time: steps, plan changes and waits, as machines come and go. Pure.

Who does what when is as the coordinator and the nodes decide it: a machine that goes cuts the step under way short; the
next plan goes on from the newest state of which every layer is left (`resume_from`), in memory, on a disk, or in the
newest checkpoint; one that comes is used once a plan with it pays back its change, which begins at the end of a step.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from dtfm_coordinator.plan_change.judged_holdings import Copy
from dtfm_coordinator.plan_change.resume_point import resume_from, shadows_of
from dtfm_coordinator.tools.lifetimes.machine_trace import MachineEvent, MachineTrace
from dtfm_protocol.errors import UserError
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS

Doing = Literal["training", "changing", "waiting"]
"""What a swarm does: trains; goes over to a plan; waits for machines, as no plan is possible."""
KEPT_SNAPSHOTS = 2
"""Number of the newest snapshots that peers have on their disks."""


class Plans(Protocol):
    """Maker of plans, and of what they cost to go over to (`PlansInTime`)."""

    standstill: float

    def search_seconds(self, machines: int) -> float: ...
    def plan(self, here: Collection[str], in_force: Plan | None) -> Plan: ...
    def moving_seconds(self, here: Collection[str], before: Plan | None, after: Plan) -> float: ...


class Keeping(NamedTuple):
    """How often a job's state is kept, as its `[checkpoint]` table says."""

    every: int
    """Steps between checkpoints; 0: none but at the end."""
    shadow: int
    """Steps between the snapshots of plans in which a stage has one peer alone."""


class Span(NamedTuple):
    """Stretch of time in which a swarm does one thing."""

    begin: float
    end: float
    doing: Doing
    plan: Plan | None
    """Plan under which it trains, or to which it goes over."""
    here: frozenset[str]
    """Machines that are there."""


class PlanBegun(NamedTuple):
    """Beginning of a plan."""

    at: float
    """Seconds when its first step begins."""
    why: str
    plan: Plan
    took: float
    """Seconds since the last step before, or since what was under way was cut short."""
    thrown_away: int
    """Number of steps that had been done and must be done again."""
    here: int
    """Number of machines that are there."""


@dataclass
class Lived:
    """What came of a run."""

    steps: int = 0
    """Number of steps done, less those that must be done again."""
    thrown_away: int = 0
    """Number of steps that were done and had to be done again."""
    trained: float = 0.0
    """Seconds of the steps done, and of the one under way at the end."""
    lost: float = 0.0
    """Seconds of steps that were cut short or had to be done again."""
    changing: float = 0.0
    waiting: float = 0.0
    broken: int = 0
    """Number of times that a machine that trained, or was about to, has gone."""
    working: float = 0.0
    """Machine-seconds of those that have a part in the plan, while it trains."""
    idle: float = 0.0
    """Machine-seconds of those that are there meanwhile without a part in it."""
    standing: float = 0.0
    """Machine-seconds of those that are there while nothing trains."""
    plans: list[PlanBegun] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    progress: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])
    """(seconds, steps done) at each bend of the curve."""


def live(trace: MachineTrace, end: float, plans: Plans, keeping: Keeping, layers: int) -> Lived:
    """Return what comes of a job of a model of so many `layers` that trains until `end`, in seconds."""
    run = _Run(trace, end, plans, keeping, layers)
    while run.now < end:
        if run.plan is None:
            run.begin_plan()
        else:
            run.train_step(run.plan)
    run.lived.progress.append((end, run.lived.steps))
    return run.lived


class _Run:
    """State of a run."""

    def __init__(self, trace: MachineTrace, end: float, plans: Plans, keeping: Keeping, layers: int) -> None:
        self.now, self.lived = 0.0, Lived()
        self.plan: Plan | None = None
        """Plan under which the swarm trains; None: it does not."""
        self._end, self._plans, self._keeping, self._layers = end, plans, keeping, layers
        self._here = set(trace.at_first)
        self._coming = deque(trace.events)
        self._held: Plan | None = None
        """Plan under which the newest state was made; None: there was none yet."""
        self._live: set[str] = set()
        """Peers of it that have been there since it began, and have their part of that state."""
        self._snapshots: dict[Mark, list[Copy]] = {}
        self._checkpoint = Mark()
        self._seconds: list[float] = []
        """Seconds of each step done."""
        self._why, self._since, self._due, self._thrown = "start", 0.0, TIMEOUTS.settle, 0
        """Why a plan is due; since when nothing trains; when the search for it may begin; steps thrown away for it."""
        self._look_at: float | None = None
        """Time when a plan with those who have come may be there."""

    def begin_plan(self) -> None:
        """Go over to a plan for those who are there, or wait for others."""
        try:
            plan = self._plans.plan(self._here, self._held)
        except UserError:
            self._pass_until(min(self._end, self._coming[0].at if self._coming else self._end), "waiting", None)
            if self._coming and self.now < self._end:
                self._take()
                self._due = self.now + TIMEOUTS.settle_in_run
            return
        resume = resume_from(self._copies(), {"coordinator": [self._checkpoint]}, self._layers, Chain())
        self._go_back_to(resume.mark.step)
        moving = self._plans.moving_seconds(self._here, self._held if resume.mark.step else None, plan)
        search = max(0.0, self._due - self.now) + self._plans.search_seconds(len(self._here))
        sources = {source.peer for source in resume.sources} & self._here
        self._go_over(plan, search + self._plans.standstill + moving, sources)

    def train_step(self, plan: Plan) -> None:
        """Train one step under the plan in force, unless it is cut short."""
        assert plan.cost is not None
        begun, until = self.now, self.now + plan.cost.total
        while self._coming and self._coming[0].at <= min(until, self._end):
            self._pass_until(self._coming[0].at, "training", plan)
            event = self._take()
            if not event.is_up and event.machine in plan.peers:
                self.lived.lost += self.now - begun
                self._since = self.now
                self._break(event)
                return
        self._pass_until(min(until, self._end), "training", plan)
        self.lived.trained += self.now - begun
        if until > self._end:
            return
        self.lived.steps += 1
        self._seconds.append(plan.cost.total)
        self._keep(plan)
        if self._look_at is not None and self._look_at <= self.now:
            self._compare(plan)

    def _compare(self, plan: Plan) -> None:
        """Go over to a plan with those who have come, if that pays back."""
        self._look_at = None
        try:
            found = self._plans.plan(self._here, plan)
        except UserError:
            return
        if found.is_laid_out_as(plan):
            return
        self.plan, self._why, self._since, self._thrown = None, "who has come is used", self.now, 0
        moving = self._plans.moving_seconds(self._here, plan, found)
        self._go_over(found, self._plans.standstill + moving, set(plan.peers))

    def _go_over(self, plan: Plan, seconds: float, sources: Collection[str]) -> None:
        """Let everybody go over to a plan, unless one of its peers goes meanwhile, or one that others have state of."""
        ends = self.now + seconds
        while self._coming and self._coming[0].at <= min(ends, self._end):
            self._pass_until(self._coming[0].at, "changing", plan)
            event = self._take()
            if not event.is_up and (event.machine in plan.peers or event.machine in sources):
                self._break(event)
                return
        self._pass_until(min(ends, self._end), "changing", plan)
        if ends > self._end:
            return
        self.plan = self._held = plan
        self._live = set(plan.peers)
        began = PlanBegun(self.now, self._why, plan, self.now - self._since, self._thrown, len(self._here))
        self.lived.plans.append(began)
        self.lived.progress.append((self.now, self.lived.steps))
        self._thrown = 0

    def _break(self, event: MachineEvent) -> None:
        """Have a new plan made, because of who has gone."""
        self.lived.broken += 1
        self.lived.progress.append((self.now, self.lived.steps))
        self.plan, self._why = None, f"{event.machine} has gone"
        self._due = self.now + TIMEOUTS.silence_shortest + TIMEOUTS.settle_in_run

    def _go_back_to(self, step: int) -> None:
        """Throw the steps after `step` away."""
        again = self.lived.steps - step
        if again:
            seconds = sum(self._seconds[step:])
            self.lived.steps, self.lived.thrown_away = step, self.lived.thrown_away + again
            self.lived.trained -= seconds
            self.lived.lost += seconds
            self._thrown += again
            self.lived.progress.append((self.now, step))
            self._snapshots = {mark: copies for mark, copies in self._snapshots.items() if mark.step <= step}
            self._live = set()
        del self._seconds[step:]

    def _copies(self) -> list[Copy]:
        """Return what those who are there hold of states."""
        copies = [copy for snapshot in self._snapshots.values() for copy in snapshot]
        if self._held is not None and self.lived.steps:
            mark = Mark(step=self.lived.steps, plan=len(self.lived.plans))
            copies += [Copy(peer, mark, _layers_of(self._held, peer), live=True) for peer in sorted(self._live)]
        return copies

    def _keep(self, plan: Plan) -> None:
        """Keep the state where that is due: by all on their disks, and by the shadows of those who are alone; with the
        first replica of each stage, and the coordinator."""
        mark, shadows = Mark(step=self.lived.steps, plan=len(self.lived.plans)), shadows_of(plan)
        kept: list[Copy] = []
        if self._keeping.every and mark.step % self._keeping.every == 0:
            self._checkpoint = mark
            kept = [Copy(plan.replicas(stage)[0], mark, layers) for stage, layers in enumerate(plan.stages)]
        if shadows and mark.step % self._keeping.shadow == 0:
            kept = [Copy(peer, mark, _layers_of(plan, peer)) for peer in plan.peers]
            kept += [Copy(peer, mark, plan.stages[stage]) for stage, peer in enumerate(shadows) if peer is not None]
        if kept:
            self._snapshots[mark] = kept
            for old in sorted(self._snapshots, key=lambda one: one.order)[:-KEPT_SNAPSHOTS]:
                del self._snapshots[old]

    def _take(self) -> MachineEvent:
        """Take in who comes or goes next."""
        event = self._coming.popleft()
        if event.is_up:
            self._here.add(event.machine)
            self._look_at = self.now + TIMEOUTS.settle_in_run + self._plans.search_seconds(len(self._here))
        else:  # all that it held is gone with it
            self._here.discard(event.machine)
            self._live.discard(event.machine)
            self._snapshots = {
                mark: [copy for copy in copies if copy.peer != event.machine]
                for mark, copies in self._snapshots.items()
            }
        return event

    def _pass_until(self, at: float, doing: Doing, plan: Plan | None) -> None:
        """Let time pass."""
        took, lived = at - self.now, self.lived
        if doing == "training":
            assert plan is not None
            lived.working += took * len(plan.peers)
            lived.idle += took * (len(self._here) - len(plan.peers))
        else:
            lived.standing += took * len(self._here)
            if doing == "changing":
                lived.changing += took
            else:
                lived.waiting += took
        span, before = Span(self.now, at, doing, plan, frozenset(self._here)), lived.spans[-1] if lived.spans else None
        if before is not None and before[2:] == span[2:]:
            lived.spans[-1] = before._replace(end=at)
        elif took > 0:
            lived.spans.append(span)
        self.now = at


def _layers_of(plan: Plan, peer: str) -> tuple[int, int]:
    """Return the layers of a peer of the plan."""
    stage = plan.stage_of(peer)
    assert stage is not None
    return plan.stages[stage]
