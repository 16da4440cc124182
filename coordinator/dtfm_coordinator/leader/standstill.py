"""Standstill of a run at the end of a step, as its owner wishes: nodes do nothing, and the state is kept.

A plan is called off as for a peer that leaves: it ends with the step under way, and all hand in a checkpoint of that.
No other plan is made before the owner wants the run to go on. A checkpoint that is asked for in between is a standstill
that ends as soon as the state is kept.
"""

from collections.abc import Awaitable, Callable

from dtfm_coordinator.leader.plan_watch import Change
from dtfm_coordinator.leader.standstill_words import reason_of, what_was_kept, where_it_stands
from dtfm_coordinator.owner.owner_desk import OwnerDesk
from dtfm_coordinator.owner.owner_wishes import CheckpointWanted, FinishWanted, Paused, PlanWanted, Resumed
from dtfm_coordinator.plan_change.plan_change_driver import PlanChangeDriver
from dtfm_coordinator.swarm.swarm_state import SwarmState
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.metrics_file import MetricsFile
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts

MOST_ATTEMPTS = 2
"""Number of plans that are made, at most, only for a state to be handed in that a fault has kept from it."""

LOOK_SECONDS = 1.0
"""Interval of looks at whether a checkpoint still comes in."""


class Standstill:
    """Standstill of one run: brings it about, and tells when it is over."""

    def __init__(
        self,
        state: SwarmState,
        driver: PlanChangeDriver,
        rows: MetricsFile,
        owner: OwnerDesk,
        say: Callable[..., Awaitable[None]],
        steps: Callable[[], int],
        *,
        is_receiving: Callable[[], bool],
        can_plan: Callable[[], bool],
        keep_for_good: Callable[[int], None],
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        """Take what to bring to a stand; nothing is stopped before `hold`.

        Args:
            owner: tells what is wished for, and is answered.
            say: tells the swarm what is done, as `Announcer.say`.
            steps: returns the number of the job's last step.
            is_receiving: tells whether a share of a checkpoint is coming in.
            can_plan: tells whether there are enough nodes for a plan.
            keep_for_good: has the checkpoint of a step never deleted; raises a UserError where that cannot be noted.
        """
        self._state, self._driver, self._rows, self._owner = state, driver, rows, owner
        self._say, self._steps, self._is_receiving, self._timeouts = say, steps, is_receiving, timeouts
        self._keep_for_good, self._can_plan = keep_for_good, can_plan
        self._attempts = 0
        self._is_ended = False

    @property
    def is_wanted(self) -> bool:
        """Whether the owner wants the run to stand still now."""
        wishes = self._owner.wishes
        return wishes.is_paused or wishes.is_finished or bool(wishes.open(CheckpointWanted))

    @property
    def is_over(self) -> bool:
        """Whether the run has ended as the owner wished, before its last step."""
        wishes = self._owner.wishes
        return wishes.is_finished and (self._is_ended or not wishes.open(FinishWanted))

    def answer_over(self, text: str) -> None:
        """Say to the owner how the run has ended, and that nothing else is done any more.

        Args:
            text: how it has ended, in one line.
        """
        self._owner.answer_all(FinishWanted, text)
        for kind in (Paused, Resumed, CheckpointWanted, PlanWanted):
            self._owner.answer_all(kind, f"the run is over: {text}", done=False)

    @property
    def is_asked(self) -> bool:
        """Whether a wish of those that `answer_over` answers was not answered yet."""
        kinds = (FinishWanted, Paused, Resumed, CheckpointWanted, PlanWanted)
        return any(self._owner.wishes.open(kind) for kind in kinds)

    async def hold(self) -> Change | None:
        """Bring the run to a stand, and keep it there for as long as the owner wishes.

        Returns:
            The change with which it goes on; None: look again at what is wished for.
        """
        plan, wishes = self._state.plan, self._owner.wishes
        self._is_ended = False
        patience = await self._stop(plan) if plan is not None else 0.0
        await self._wait_until_kept(patience)
        was_paused = wishes.is_paused
        if was_paused and not self._may_try_again:
            await self._stay_paused()
        if self._may_try_again:
            self._attempts += 1
            return Change(f"the state after step {self._rows.last} has yet to be kept", keeps=True)
        if was_paused and wishes.is_finished:
            return None
        self._attempts = 0
        if wishes.is_finished:
            self._answer_checkpoints()
            self._rows.forget_after(self._state.kept.step)
            self._is_ended = True
            return None
        if was_paused:
            self._state.divergence.forget()  # the owner wants it tried again
            return _onward("resumed by the owner", plan)
        self._answer_checkpoints()
        if self._state.divergence.verdict:
            return None  # whoever looks at the plan next tells what becomes of the run
        return _onward(f"after a stop at step {self._state.kept.step} for the owner", plan, same=True)

    @property
    def _may_try_again(self) -> bool:
        """Whether a plan is to be made for the state to be handed in under it: not where the step after it breaks
        every plan before anybody has handed anything in."""
        is_open = self.is_wanted and self._state.plan is not None and not self._is_kept
        is_open = is_open and not self._state.divergence.verdict
        return is_open and self._attempts < MOST_ATTEMPTS and self._can_plan()

    async def _stop(self, plan: Plan) -> float:
        """End the plan in force with the step under way and a checkpoint of it; return the seconds within which that is
        to be whole, or more of it to come."""
        driver, timeouts = self._driver, self._timeouts
        if driver.epoch.called > driver.epoch.in_force:  # it has ended, or is about to, but not for this wish
            if not driver.epoch.parked:
                await driver.call(gently=True, parked=True)
            return timeouts.park if self._is_alive(plan) else 0.0

        def has_settled() -> bool:
            begun = self._state.all_train(plan) or self._is_kept
            return begun or not self._is_alive(plan) or not self.is_wanted

        if not has_settled():
            await self._say("waiting", f"{self._why}: plan {plan.version} begins, and ends with its first step")
            await self._state.wait(has_settled)
        trains = self._state.all_train(plan) and self._is_alive(plan)
        await self._say(
            "waiting", f"{self._why}: plan {plan.version} ends{' with the step under way' if trains else ''}"
        )
        await driver.call(gently=trains, parked=True)
        if not trains:
            return 0.0
        return timeouts.checkpoint_share if driver.epoch.gently else timeouts.park

    def _is_alive(self, plan: Plan) -> bool:
        """Whether all peers of a plan are here, and none of them says that it cannot go on."""
        members = self._state.members
        return members.broken(plan.peers, plan.version) is None and not members.missing(plan.peers)

    async def _wait_until_kept(self, patience: float) -> None:
        """Wait until the newest step is kept, or nobody can be expected to hand it in any more."""
        clock = self._state.clock
        end = clock.now() + patience

        def settled() -> bool:
            return self._is_kept or not self.is_wanted

        if not settled():
            await self._say("waiting", f"{self._why}: step {self._rows.last} is on its way to the coordinator")
        while not await self._state.wait(settled, LOOK_SECONDS):
            if self._has_lost_peer():  # its share may be here already, and only others' on their way
                end = min(end, clock.now() + self._timeouts.checkpoint_confirm)
            if not self._is_receiving() and clock.now() >= end:
                break

    async def _stay_paused(self) -> None:
        """Answer what is asked for, and say how things stand, until the run is to go on or to end, or can have its
        state kept after all."""
        wishes, asked = self._owner.wishes, (Paused, CheckpointWanted, PlanWanted)
        is_answered = not wishes.open(Paused)
        while wishes.is_paused:
            said = self._said
            await self._say("waiting", f"paused by the owner {said}", paused=True)
            self._owner.answer_all(Paused, f"{'the run is paused already,' if is_answered else 'paused'} {said}")
            is_answered = True
            self._answer_checkpoints()
            self._owner.answer_all(PlanWanted, "the run is paused: `resume` makes a plan anew", done=False)

            def is_news(said: str = said) -> bool:
                is_asked = not wishes.is_paused or any(wishes.open(kind) for kind in asked)
                return is_asked or self._said != said or self._may_try_again

            await self._state.wait(is_news)
            if self._may_try_again:
                return

    def _answer_checkpoints(self) -> None:
        if not self._owner.wishes.open(CheckpointWanted):
            return
        step = self._state.kept.step
        done, text = what_was_kept(self._rows.last, step, has_diverged=bool(self._state.divergence.verdict))
        if done:
            try:
                self._keep_for_good(step)
            except UserError as error:
                done, text = False, f"the state after step {step} is kept until newer ones come: {error}"
        self._owner.answer_all(CheckpointWanted, text, done=done)

    @property
    def _is_kept(self) -> bool:
        return self._state.kept.step >= self._rows.last

    @property
    def _said(self) -> str:
        diverged = bool(self._state.divergence.verdict)
        return where_it_stands(self._rows.last, self._state.kept.step, self._steps(), has_diverged=diverged)

    @property
    def _why(self) -> str:
        return reason_of(self._owner.wishes)

    def _has_lost_peer(self) -> bool:
        """Whether a peer of the plan is gone, was started anew, or cannot go on, and so hands nothing in any more."""
        plan, members = self._state.plan, self._state.members
        if plan is None or not self._is_alive(plan):
            return True
        reports = (member.report for peer in plan.peers if (member := members.get(peer)) is not None)
        return any(report is not None and report.plan_version != plan.version for report in reports)


def _onward(why: str, plan: Plan | None, *, same: bool = False) -> Change:
    """Return the change with which a run goes on: to the `same` layout where that is wanted, and there was one."""
    if plan is None:
        return Change("the first plan")
    return Change(why, gently=True, layout=plan) if same else Change(why)
