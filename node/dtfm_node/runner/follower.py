"""Follower of plans: decides which plan a node follows, what it promises, and when it may pause or go. Pure: events go
in, actions come out.

A plan is served when it is in force; one that is over is served no more, whatever comes. Nobody takes a plan, or
promises to, before its work under the last one has ended; and nothing goes on while a promise is not on the disk.

A node that pauses stays a member: it answers calls, so that others can go on without it, and takes no plan in which it
would train.

The shell (`plan_loop`) feeds what it hears, and what became of the actions: it answers `StopServing` and the end of
what `BeginPlan` began with `ServingEnded`, and `AnswerCall` and `TakePlan` with `PromiseWritten` or `NoRoom`.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from dtfm_node.control.latest_plan import Heard, HeardCall, HeardPlan


class Pledge(NamedTuple):
    """Promise as a plain value, with the rule by which it changes: to follow no plan below `version`, nor one of that
    version by another coordinator than `to`; `accepted` is the newest plan taken."""

    version: int = 0
    to: str = ""
    accepted: int = 0

    def called(self, version: int, by: str) -> Self | None:
        """Return the promise that answers a coordinator's call, or None if there is nothing new to promise."""
        if version <= self.version:
            return None
        return self._replace(version=version, to=by)

    def offered(self, version: int, by: str) -> Self | None:
        """Return the promise that goes with taking a plan, or None if the present one forbids to take it."""
        if version <= self.accepted or version < self.version or (version == self.version and by != self.to):
            return None
        return self._replace(version=version, to=by, accepted=version)

    def shows_taken(self, author: str, call: HeardCall) -> bool:
        """Whether the coordinator that was promised may not know of the plan that was taken last: it is another one
        than its author; or its disk was put back to an earlier one, so that it calls and does not name that plan as in
        force."""
        if self.version <= self.accepted:
            return False
        return author != self.to or call.by != self.to or call.in_force < self.accepted


# -- events: what was heard is one, too ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobOver:
    """Event: there will be no more plans, because the job is done."""


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """Event: the node's owner wants it to leave; fed again whenever what it holds may have changed."""

    holds: bool
    """Whether the node holds a state that a plan trained, or trains."""
    settled: bool
    """Whether nothing is left to write, or to hand in to the coordinator."""


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """Event: this node is to pause; fed again, until it does, whenever what it holds may have changed."""

    holds: bool
    """As in `LeaveAsked`."""
    settled: bool
    """As in `LeaveAsked`."""
    at_once: bool = False
    """Whether it does not wait until others have what it holds."""


@dataclass(frozen=True, slots=True)
class PauseOver:
    """Event: this node may work again."""


@dataclass(frozen=True, slots=True)
class ServingEnded:
    """Event: the work under a plan has ended; it was stopped, or could not go on, or all of it is done."""


@dataclass(frozen=True, slots=True)
class PromiseWritten:
    """Event: the promise that was to be written is on the disk."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Event: the promise that was to be written is not, as the disk is full. It is due again when anything is heard."""


FollowerEvent = Heard | JobOver | LeaveAsked | PauseAsked | PauseOver | ServingEnded | PromiseWritten | NoRoom


# -- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndPlan:
    """Action: have the plan that is served end with the step under way, and with a checkpoint where that is to be
    `kept`."""

    kept: bool


@dataclass(frozen=True, slots=True)
class StopServing:
    """Action: stop at once what is served; a step that is final is applied before that."""


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """Action: write down the promise that a call asks for, and only then send it."""

    pledge: Pledge


@dataclass(frozen=True, slots=True)
class TakePlan:
    """Action: write down the newest plan that was heard of, then the promise that goes with it, and only then send
    that."""

    pledge: Pledge


@dataclass(frozen=True, slots=True)
class BeginPlan:
    """Action: serve the newest plan that was heard of, as one that trains or as a spare."""


@dataclass(frozen=True, slots=True)
class DeclinePlan:
    """Action: say that this node is not part of the newest plan any more."""

    why: str
    """What has ended its part, in words for people."""


@dataclass(frozen=True, slots=True)
class DropFormer:
    """Action: let go of all that memory holds of plans that were trained before; the others have what they need."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Action: let go of all that memory holds, and be silent; nothing is served."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Action: follow no more plans."""


FollowerAction = EndPlan | StopServing | AnswerCall | TakePlan | BeginPlan | DeclinePlan | DropFormer | Pause | Finish


# -- the machine --------------------------------------------------------------------------------------------------


class Follower(NamedTuple):
    """State of a node that follows plans: what it has promised, has heard and serves."""

    pledge: Pledge = Pledge()
    """Promise that is on its disk."""
    forgotten: int = 0
    """Version of the newest plan taken before this node was started anew: what it held for it in memory is gone."""
    heard: Heard = Heard()
    served: HeardPlan | None = None
    """Newest plan that it has served, serves, or has declined."""
    work: Literal["none", "serving", "stopping"] = "none"
    ending: EndPlan | None = None
    """Action by which the plan that is served is to end with a step; None: it is not to end so."""
    writing: Pledge | None = None
    """Promise that is on its way to the disk."""
    dropped: bool = False
    """Whether a spare under the plan `served` has let go of what it held before."""
    leaving: LeaveAsked | None = None
    pausing: PauseAsked | None = None
    paused: bool = False

    @classmethod
    def restarted(cls, pledge: Pledge) -> Self:
        """Return a node that was started anew, and has lost all but what it has promised."""
        return cls(pledge, forgotten=pledge.accepted)

    def on(self, event: FollowerEvent) -> tuple[Self, tuple[FollowerAction, ...]]:
        """Return the state after `event`, and the actions to carry out, in order."""
        match event:
            case Heard():
                return self._replace(heard=event)._look()
            case JobOver():
                return self, (Finish(),)
            case LeaveAsked():
                return self._replace(leaving=event)._look()
            case PauseAsked():
                return self._replace(pausing=event)._look()
            case PauseOver():
                return self._wake()
            case ServingEnded():
                ended = self._replace(work="none", ending=None)
                # Who stopped because of a call answers it first; who stopped to pause does that.
                return ended._decide() if self.work == "stopping" and not self.pausing else ended._look()
            case PromiseWritten():
                assert self.writing is not None, "nothing was to be written"
                return self._replace(pledge=self.writing, writing=None)._decide()
            case NoRoom():
                return self._replace(writing=None), ()

    def _look(self) -> tuple[Self, tuple[FollowerAction, ...]]:
        if self.leaving is not None and (self.paused or self._is_spared(self.leaving)):
            return self, (Finish(),)
        asked = self.pausing
        if asked is None or self.paused or not (asked.at_once or self._is_spared(asked)):
            return self._decide()
        if self.work == "serving":
            return self._replace(work="stopping", ending=None), (StopServing(),)
        if self.work == "stopping":
            return self, ()
        after, actions = self._replace(paused=True)._decide()
        return after, (Pause(), *actions)

    def _is_spared(self, asked: LeaveAsked | PauseAsked) -> bool:
        """Whether others can do without this node: a plan without it, or a checkpoint, has what it held."""
        call, plan = self.heard
        if plan is None or not asked.holds:
            return True
        if call.parked:
            return self.work == "none" and asked.settled
        return call.started >= plan.version and not plan.trains

    def _wake(self) -> tuple[Self, tuple[FollowerAction, ...]]:
        """Be there for plans again; of the one that it has stopped to serve, it is no part any more."""
        after, actions = self._replace(pausing=None, paused=False)._decide()
        plan, served = self.heard.plan, self.served
        stopped = self.paused and plan is not None and served is not None and served.version == plan.version
        if stopped and plan is not None and plan.trains and after.work == "none":
            return after, (DeclinePlan("it has paused"), *actions)
        return after, actions

    def _decide(self) -> tuple[Self, tuple[FollowerAction, ...]]:
        """Return the state and the actions that are due now; where an outcome must be known first, the rest is due
        after it."""
        if self.work == "stopping" or self.writing is not None:
            return self, ()
        call, plan = self.heard
        answer = self.pledge.called(call.called, call.by)
        after, actions = self, tuple[FollowerAction, ...]()
        if self.work == "serving":
            ending = EndPlan(kept=call.parked)
            if answer is not None and not call.gently:
                return self._replace(work="stopping"), (StopServing(),)
            if answer is not None and ending != self.ending:
                after, actions = self._replace(ending=ending), (ending,)
        elif answer is not None:
            return self._replace(writing=answer), (AnswerCall(answer),)
        elif plan is not None and not (self.paused and plan.trains):
            taken = self.pledge.offered(plan.version, plan.author)
            if taken is not None:
                return self._replace(writing=taken), (TakePlan(taken),)
            if self._may_begin(plan):
                after, actions = self._begin(plan)
        return after._let_go(actions)

    def _may_begin(self, plan: HeardPlan) -> bool:
        """Whether `plan` was taken, is in force, and was not served before."""
        # Not one that was taken before a later promise, either: who has promised is counted on to have stopped.
        served = self.served.version if self.served is not None else 0
        return plan.version == self.pledge.accepted == self.pledge.version and (
            served < plan.version <= self.heard.call.in_force
        )

    def _begin(self, plan: HeardPlan) -> tuple[Self, tuple[FollowerAction, ...]]:
        after = self._replace(served=plan, dropped=False)
        if plan.trains and plan.version <= self.forgotten:
            return after, (DeclinePlan("started anew"),)
        return after._replace(work="serving"), (BeginPlan(),)

    def _let_go(self, actions: tuple[FollowerAction, ...]) -> tuple[Self, tuple[FollowerAction, ...]]:
        """Add, on a spare, the drop of what earlier plans have left, once all peers of the plan hold its state."""
        served = self.served
        if served is None or served.trains or self.dropped or self.heard.call.started < served.version:
            return self, actions
        return self._replace(dropped=True), (*actions, DropFormer())
