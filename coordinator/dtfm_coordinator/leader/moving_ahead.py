"""Moving of state ahead of a better plan, while the one in force is trained on: peers fetch what they lack, and only
then is the plan called for."""

import time
from collections.abc import Callable, Collection, Iterable

from dtfm_coordinator.leader.lead_context import LeadContext
from dtfm_coordinator.membership.members import Member
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.control.messages import PROBE, ProbeRound
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts


class MovingAhead:
    """Mover of state ahead of plans. Nothing depends on it: what is not there in time is fetched when a plan begins."""

    def __init__(self, context: LeadContext, state: SwarmState, timeouts: Timeouts = TIMEOUTS) -> None:
        self._context, self._state, self._timeouts = context, state, timeouts

    async def move(self, before: Plan, layout: Plan, unless: Callable[[], bool]) -> None:
        """Have peers fetch what `layout` gives them and `before`, which is in force, does not; wait until they have it.

        Args:
            unless: condition that ends the wait when it becomes true: another plan is more urgent.
        """
        waited = lacking(before, layout)
        if not waited:
            return
        state, begun = self._state, self._state.clock.now()
        number = time.time_ns() // 1_000_000
        coming = layout.model_copy(update={"history": (), "reason": ""})
        await self._context.control.publish(PROBE, ProbeRound(id=number, addresses={}, coming=coming))

        def is_waited_for(peer: str) -> bool:
            """Whether a peer has heard, or may still, and has not all of it yet."""
            member = state.members.get(peer)
            if member is None or not member.online or member.report is None:
                return False
            may_hear = state.clock.now() < begun + self._timeouts.report_silence
            return not is_ahead(member, number) and (may_hear or member.report.coming == number)

        def due() -> bool:
            return unless() or not any(map(is_waited_for, waited))

        end = begun + self._timeouts.state_ahead
        while not due() and state.clock.now() < end:
            await state.wait(due, min(self._timeouts.report_silence, end - state.clock.now()))
        log.debug("state was moved ahead of the next plan for %.1f s", state.clock.now() - begun)


def lacking(before: Plan, layout: Plan) -> list[str]:
    """Return the peers that serve layers under `layout` which they do not serve under `before`, in order."""
    found = []
    for peer in layout.peers:
        stage, former = layout.stage_of(peer), before.stage_of(peer)
        assert stage is not None, "a peer of the plan serves a stage"
        (first, end), (low, high) = layout.stages[stage], (0, 0) if former is None else before.stages[former]
        if first < low or end > high:
            found.append(peer)
    return found


def fails_beside(failing: Iterable[tuple[str, str]], fetching: Collection[str]) -> bool:
    """Return whether any link fails besides those of peers that are fetching state: frames are slow on these meanwhile,
    for they share their lines with it."""
    return any(not {*fetching} & {*pair} for pair in failing)


def is_ahead(member: Member, number: int) -> bool:
    """Whether a peer says that it has all that it lacks for the layout of round `number`, or cannot have it ahead."""
    report = member.report
    return report is not None and report.coming == number and report.is_ahead
