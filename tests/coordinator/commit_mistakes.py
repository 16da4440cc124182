"""Peers and coordinators that decide wrongly, each in one thing: with each of them the search finds what it breaks."""

from typing import Self

from dtfm_coordinator.plan_change.plan_change import Decision, PlanChange
from dtfm_coordinator.plan_change.plan_change_events import (
    Call,
    ChangeEvent,
    Durable,
    FindEnded,
    Held,
    Hold,
    Role,
    Stood,
    Write,
)
from dtfm_coordinator.plan_change.plan_electors import Electorate
from dtfm_node.engine.step_arbiter import Arbiter
from dtfm_node.runner.follower import BeginPlan, Follower, FollowerAction, FollowerEvent, Pledge
from dtfm_protocol.plan.ballot import Commit, Vote
from dtfm_protocol.plan.lineage import Ancestor, Chain
from dtfm_protocol.plan.peer_state import LayerRange, Mark
from dtfm_protocol.plan.plan import Resume
from dtfm_protocol.plan.signed_commit import SignedCommit
from tests.coordinator.commit_lies import NEVER
from tests.coordinator.commit_state import MadePlan, Memory, Part, Shown


class WithoutVotes(Arbiter):
    """One vote is enough."""

    def take(self, peer: str, vote: Vote) -> Commit:
        return super().take(peer, vote) or Commit()


class ForgetsItsPromise(Follower):
    """What is promised is not on the disk."""

    @classmethod
    def restarted(cls, pledge: Pledge) -> Self:
        return super().restarted(Pledge())


class Hasty(Follower):
    """Begins what it has taken and hears now to be in force, even if it has promised since not to act under it."""

    def on(self, event: FollowerEvent) -> tuple[Self, tuple[FollowerAction, ...]]:
        machine, actions = super().on(event)
        plan, served = machine.heard.plan, machine.served.version if machine.served is not None else 0
        if actions or machine.work != "none" or machine.writing is not None or plan is None:
            return machine, actions
        if served < plan.version == machine.pledge.accepted <= machine.heard.call.in_force:
            return machine._replace(served=plan, work="serving"), (BeginPlan(),)
        return machine, actions


class NothingPrepared(Memory):
    """Whoever answers a call has dropped what it had prepared."""

    @property
    def shown(self) -> tuple[Part, ...]:
        return tuple(part._replace(prepared=None) for part in self.held.whole)


class KeepsItsPace(Memory):
    """Whoever has heard of new durations goes on with them under the next plan."""

    def redo(self, resume: Resume) -> Self:
        return super().redo(resume)._replace(pace=self.pace)

    def enter(self, plan: MadePlan) -> Self:
        return super().enter(plan)._replace(pace=self.pace)


class LiveAlone(Memory):
    """What is loaded, but not begun yet, and what was held before is neither reported nor given."""

    @property
    def shown(self) -> tuple[Part, ...]:
        return (self.live,) if self.live is not None else ()


class WithoutQuorum(PlanChange):
    """Whoever promises is enough."""

    @classmethod
    def of(cls, role: Role, saved: Durable) -> Self:
        return super().of(role._replace(without_quorum=True), saved)


class WhosePlanDoesNotMatter(PlanChange):
    """A process counts as ended whatever plan it was seen under."""

    def on(self, event: ChangeEvent) -> Decision:
        machine, actions = super().on(event)
        doors = machine.durable.doors
        return machine, tuple(one._replace(doors=doors) if isinstance(one, FindEnded) else one for one in actions)


class SaysItFirst(PlanChange):
    """A plan is said to be in force, and then written down."""

    def on(self, event: ChangeEvent) -> Decision:
        if isinstance(event, Held):
            return self, ()
        machine, actions = super().on(event)
        if any(isinstance(one, Hold) for one in actions):
            machine, first = PlanChange.on(machine, Held())
            actions = (*first, *actions)
        return machine, actions


class LearnsNothing(PlanChange):
    """Only the plan before counts, whatever plan peers have taken since."""

    def on(self, event: ChangeEvent) -> Decision:
        return super().on(event._replace(taken=None) if isinstance(event, Stood) else event)


class GrantsAll(Chain):
    """Whoever says that it has layers may have them."""

    def grants(self, peer: str, mark: Mark, layers: LayerRange, *, live: bool) -> bool:
        return True


class WithoutCommits(Chain):
    """The newest plan's states are believed like those of closed ones."""

    def is_open(self, mark: Mark) -> bool:
        return False


class WithoutEnds(Chain):
    """A plan's states count however far it went on by itself, as long as its arbiter has signed them."""

    def maker(self, mark: Mark) -> Ancestor | None:
        return next((one for one in self.plans if one.version == mark.plan), None)

    def is_open(self, mark: Mark) -> bool:
        return True


def is_signed_by_anybody(commit: SignedCommit, arbiter: str) -> bool:
    """Any signature will do."""
    return True


def believes_the_arbiter(shown: Shown, chain: Chain) -> int:
    """What the arbiter says was final is."""
    return NEVER


def takes_no_proof(shown: Shown, chain: Chain) -> int:
    """Only peers that are there can say that others than the arbiter have come to a step."""
    return 0


def believes_what_is_ahead(ahead: Part, source: Part) -> bool:
    """What was given ahead counts as it is, if it is of that step."""
    return True


class Unaware(Follower):
    """Does not know that a process which was started anew has lost what it held for the plan that it had taken."""

    @classmethod
    def restarted(cls, pledge: Pledge) -> Self:
        return cls(pledge)


class CountsWhatItForgot(PlanChange):
    """A coordinator whose disk was put back counts its own promise, as if it had made no other since."""

    def _forgetful(self, plan: Electorate) -> str:
        return ""


class UsesVersionsAgain(PlanChange):
    """A coordinator whose disk was put back calls for the versions that follow what it remembers."""

    def on(self, event: ChangeEvent) -> Decision:
        if not isinstance(event, Call):
            return super().on(event)
        forgotten = self.durable.forgotten
        machine, actions = PlanChange.on(self._replace(durable=self.durable._replace(forgotten=0)), event)
        durable = machine.durable._replace(forgotten=forgotten)
        written = tuple(Write(durable) if isinstance(one, Write) else one for one in actions)
        return machine._replace(durable=durable), written
