"""Change of plans, as one coordinator decides it: a call that ends the old plan, promises of peers, the new plan,
its taking, and its coming into force. Two coordinators may try at once; one plan a version comes of it. Pure.

`PlanChange.on(event)` gives the machine's next value and the actions to carry out: no disk, clock or network is here
(see `plan_change_driver`). What must be on the disk before anything follows from it is waited for as an event.
"""

from typing import NamedTuple, Self

from dtfm_coordinator.plan_change.plan_change_events import (
    Action,
    Base,
    Begun,
    Call,
    ChangeEvent,
    ChangePhase,
    Doors,
    DoorsFound,
    Durable,
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
from dtfm_coordinator.plan_change.plan_electors import Electorate, has_quorum
from dtfm_protocol.process.timeouts import TIMEOUTS

Decision = tuple["PlanChange", tuple[Action, ...]]
"""Next value of the machine, and the actions to carry out, in this order."""

MOST_PROMISES = 4096
"""Promises that are kept of peers that have no say in any plan that is known: each is written to the disk."""


class PlanChange(NamedTuple):
    """State of one coordinator's part in changes of plan: all that it knows of them."""

    role: Role
    durable: Durable = Durable()
    """Values that are to be on the disk."""
    saved: Durable = Durable()
    """Values that are on the disk; only these count."""
    before: Electorate | None = None
    """Plan in force, as far as this coordinator put one in force, or found it on its disk."""
    phase: ChangePhase = "settled"
    bases: tuple[Base, ...] = ()
    """Plans that the next one follows, as far as peers tell; the quorum of the last may be lacking."""
    offered: Electorate | None = None

    @classmethod
    def of(cls, role: Role, saved: Durable) -> Self:
        """Return the machine of a coordinator that finds `saved` on its disk; if there is a plan, too, feed it
        `Returned`."""
        return cls(role, saved, saved)

    @property
    def is_followed(self) -> bool:
        """Whether most of those who decide on what follows the plan in force have promised to follow this coordinator:
        then no other one leads."""
        before, called = self.before, self.saved.epoch.called
        if before is None or called <= before.version:
            return False
        return has_quorum(before, self._promised(), (), alone=self.role.alone, forgetful=self._forgetful(before))

    def on(self, event: ChangeEvent) -> "Decision":
        """Return what follows from an event: the next value of the machine, and actions."""
        match event:
            case Returned(plan):
                return self._replace(before=plan), (Propose(plan.version), Publish(self.saved.epoch))
            case Call():
                return self._call(event)
            case Seek():
                return self._seek()
            case Stood():
                return self._hear(event)
            case Present(stands, time_is_up):
                return self._look(stands, time_is_up)
            case ProcessesEnded(version, peers):
                return self._find_ended(version, peers)
            case Offer(plan):
                return self._offer(plan)
            case Held():
                return self._put_in_force()
            case Written(durable):
                return self._written(durable)
            case Begun(plan):
                return self._begin(plan)
            case DoorsFound(version, doors):
                if version < self.durable.doors_of:
                    return self, ()
                return self._write(self.durable._replace(doors=doors, doors_of=version))

    def _call(self, call: Call) -> "Decision":
        """End every plan so far. A plan that is on its way to the disk must not be called away: it may be in force
        already."""
        if self.phase == "holding":
            raise ValueError("a plan is called for while another one comes into force")
        epoch = self.durable.epoch
        before = self.before.version if self.before is not None else 0
        newest = max(epoch.called, epoch.in_force, before, self.durable.forgotten)
        version = max(newest, call.beyond) + 1
        called = epoch._replace(called=version, gently=call.gently, parked=call.parked)
        waits = call.gently and self.before is not None
        promised = frozenset(one for one in self.durable.promised if one[1] >= version)
        machine = self._replace(phase="stopping" if waits else "called", bases=(), offered=None)
        machine, actions = machine._write(self.durable._replace(epoch=called, promised=promised))
        return machine, (*actions, Wait(call.patience)) if waits else actions

    def _stop(self, stands: tuple[Stand, ...], time_is_up: bool) -> "Decision":
        """Wait until the step under way has ended; when time is up, end the plan in the middle of it."""
        assert self.before is not None
        if self._all_promised(self.before, stands):
            return self._replace(phase="called"), ()
        if not time_is_up:
            return self, ()
        epoch = self.durable.epoch._replace(gently=False)
        return self._replace(phase="called")._write(self.durable._replace(epoch=epoch))

    def _seek(self) -> "Decision":
        if self.phase != "called":
            raise ValueError(f"no plan may be sought: the change of plan is {self.phase}")
        return self._follow(self.before)

    def _follow(self, plan: Electorate | None) -> "Decision":
        """Seek the quorum of one more plan; None: there is no further plan that the next one must follow."""
        if plan is None:
            return self._replace(phase="agreed"), ()
        # What was true of an earlier plan's processes says nothing of this one's.
        machine = self._replace(phase="gathering", bases=(*self.bases, Base(plan)))
        found, actions = machine._gather()
        return (found, actions) if found is not machine else (machine, (machine._search(),))

    def _gather(self) -> "Decision":
        """Go on once a quorum of the last plan's electors has promised."""
        base = self.bases[-1]
        if not self._has_quorum(base, self._promised()):
            return self, ()
        return self._replace(phase="late"), (Wait(TIMEOUTS.late_promise),)

    def _search(self) -> FindEnded:
        """Return the action that asks which processes have ended: doors tell only of the plan under which they were
        seen."""
        plan = self.bases[-1].plan
        return FindEnded(plan.version, self._doors_of(plan))

    def _doors_of(self, plan: Electorate) -> Doors:
        if self.durable.doors_of != plan.version:
            return ()
        return tuple(one for one in self.durable.doors if one[0] in plan.electors)

    def _find_ended(self, version: int, peers: frozenset[str]) -> "Decision":
        if self.phase != "gathering" or self.bases[-1].plan.version != version:
            return self, ()  # it was asked for another plan's sake
        plan = self.bases[-1].plan
        machine = self._replace(bases=(*self.bases[:-1], Base(plan, peers)))
        found, actions = machine._gather()
        if found is not machine:
            return found, actions
        deciding = set(plan.electors) - {self._forgetful(plan)}
        answered = len(self._promised() & deciding)
        return machine, (Lack(version, answered, len(deciding)), Wait(TIMEOUTS.promise_look))

    def _look(self, stands: tuple[Stand, ...], time_is_up: bool) -> "Decision":
        if self.phase == "stopping":
            return self._stop(stands, time_is_up)
        if self.phase == "gathering":
            return self, (self._search(),) if time_is_up else ()
        if self.phase == "late" and (time_is_up or self._all_promised(self.bases[-1].plan, stands)):
            return self._follow(self._learnt_after(self.bases[-1].plan))
        if self.phase == "offered":
            return self._take(stands, time_is_up)
        return self, ()

    def _learnt_after(self, before: Electorate) -> Electorate | None:
        """Return the newest plan after `before` that a peer which has promised had taken, as it may be in force; None:
        there is none."""
        plan = self.saved.learnt
        return plan if plan is not None and before.version < plan.version < self.durable.epoch.called else None

    def _offer(self, plan: Electorate) -> "Decision":
        if self.phase != "agreed" or plan.version != self.durable.epoch.called:
            raise ValueError(f"plan {plan.version} may not be offered: the change of plan is {self.phase}")
        return self._replace(phase="offered", offered=plan), (Propose(plan.version), Wait(TIMEOUTS.step_end))

    def _take(self, stands: tuple[Stand, ...], time_is_up: bool) -> "Decision":
        """Hold the plan that was offered once enough have taken it; give it up if that will not happen."""
        plan, me = self.offered, self.role.me
        assert plan is not None
        took = {s.peer for s in stands if (s.version, s.to, s.accepted) == (plan.version, me, plan.version)}
        if took.issuperset(plan.peers) and all(self._has_quorum(base, frozenset(took | {me})) for base in self.bases):
            return self._replace(phase="holding"), (Hold(plan.version),)
        if time_is_up or not {s.peer for s in stands}.issuperset(plan.peers):
            return self._replace(phase="settled", bases=(), offered=None), ()
        return self, ()

    def _put_in_force(self) -> "Decision":
        """Write down that the plan is in force; it is published once that is on the disk (`_written`)."""
        assert self.offered is not None
        epoch = self.durable.epoch._replace(in_force=self.offered.version)
        return self._write(self.durable._replace(epoch=epoch))

    def _begin(self, plan: Electorate) -> "Decision":
        """Write down that `plan` has begun, and ask for its peers' doors: now, while all live, is the time to see
        those."""
        epoch = self.durable.epoch
        if epoch.started >= plan.version:
            return self, ()
        machine, actions = self._write(self.durable._replace(epoch=epoch._replace(started=plan.version)))
        return machine, (*actions, FindDoors(plan))

    def _hear(self, stood: Stood) -> "Decision":
        if not self.awaits(stood):
            return self, ()
        promised = frozenset((dict(self.durable.promised) | {stood.peer: stood.version}).items())
        # In one with the promise: its peer may be gone before anybody looks at what it had taken.
        return self._write(self.durable._replace(promised=promised, learnt=self._newest_learnt(stood.taken)))

    def awaits(self, stood: Stood) -> bool:
        """Return whether a promise is one that was called for, is new, and has a place on the disk."""
        known, called = dict(self.durable.promised), self.durable.epoch.called
        # One of a version that was not called for yet would count for all calls up to it.
        newest = max(known.get(stood.peer, 0), called - 1)
        if stood.to != self.role.me or not newest < stood.version <= called:
            return False
        plans = [self.before, self.offered, *(base.plan for base in self.bases)]
        elects = any(stood.peer in plan.electors for plan in plans if plan is not None)
        return elects or stood.peer in known or len(known) < MOST_PROMISES

    def _newest_learnt(self, taken: Electorate | None) -> Electorate | None:
        """Return the newest plan that is learnt of, when a peer has taken `taken`."""
        known = self.durable.learnt
        if taken is None or (known is not None and known.version >= taken.version):
            return known
        # A later plan of its own, if it is not the one in force, this coordinator has given up.
        is_own = taken.author == self.role.me and taken.version > self.durable.forgotten
        return known if is_own else taken

    def _write(self, durable: Durable) -> "Decision":
        return self._replace(durable=durable), (Write(durable),)

    def _written(self, durable: Durable) -> "Decision":
        """Take note of what is on the disk now: nothing is published, and no promise counts, before it is there."""
        machine = self._replace(saved=durable)
        actions: tuple[Action, ...] = (Publish(durable.epoch),) if durable.epoch != self.saved.epoch else ()
        if machine.phase == "gathering":
            machine, more = machine._gather()
            actions = (*actions, *more)
        offered = machine.offered
        if machine.phase == "holding" and offered is not None and durable.epoch.in_force == offered.version:
            machine = machine._replace(phase="settled", before=offered, bases=(), offered=None)
        return machine, actions

    def _promised(self) -> frozenset[str]:
        """Return the peers that have promised the version that is called for, and this coordinator."""
        version = self.durable.epoch.called
        return frozenset(peer for peer, given in self.saved.promised if given >= version) | {self.role.me}

    def _all_promised(self, before: Electorate, stands: tuple[Stand, ...]) -> bool:
        """Whether all peers that train under `before`, and whose reports come, have promised."""
        promised = self._promised()
        return all(stand.peer in promised for stand in stands if stand.peer in before.peers)

    def _has_quorum(self, base: Base, promised: frozenset[str]) -> bool:
        role = self.role
        forgetful = self._forgetful(base.plan)
        return role.without_quorum or has_quorum(base.plan, promised, base.ended, alone=role.alone, forgetful=forgetful)

    def _forgetful(self, plan: Electorate) -> str:
        """Return this coordinator's own id where it may have forgotten what it decided on the plan after `plan`; "" if
        it has not."""
        return self.role.me if plan.version <= self.durable.forgotten else ""
