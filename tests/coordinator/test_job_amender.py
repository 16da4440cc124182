"""The owner's wishes on their way into plans: taken up with the next one, answered, and never moved."""

from pathlib import Path
from typing import Any

import pytest

from dtfm_coordinator.leader.job_amender import JobAmender
from dtfm_coordinator.owner.owner_desk import OwnerDesk
from dtfm_coordinator.owner.owner_wishes import Amended
from dtfm_coordinator.owner.wish_file import WishFile
from dtfm_protocol.errors import UserError
from dtfm_protocol.job.amendment import Settings, Values
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.plan import Plan, Resume
from tests.coordinator.peers import JOB, Peers, plan_of, row


class Planning:
    """A planner that notes for what it is to plan."""

    def __init__(self) -> None:
        self.settings = Settings.of(JOB)

    def check(self, settings: Settings) -> None:
        if settings.plan.stages == 9:
            raise UserError("too many stages")

    def amend(self, settings: Settings) -> None:
        self.settings = settings


class Amending:
    """A run whose owner has wishes."""

    def __init__(self, folder: Path) -> None:
        peers = Peers(folder)
        self.state, self.rows, self.file = peers.state, peers.rows, WishFile(folder)
        self.desk, self.planner = OwnerDesk(WishFile(folder), clock=lambda: 5.0), Planning()
        planner: Any = self.planner
        self.amender = JobAmender(JOB, planner, self.state, self.rows, self.desk)
        self.at = 100.0

    def wish(self, values: Values, from_step: int | None = None) -> int:
        self.at += 1
        number = self.file.add(Amended(at=self.at, values=values, from_step=from_step)).number
        self.desk.look()
        return number

    def comes_to(self, step: int) -> None:
        for number in range(self.rows.last + 1, step + 1):
            self.rows.append(row(number))

    async def plans(self, version: int, resumed: int, follows: Plan | None = None) -> tuple[Plan, bool]:
        """The next plan is made and comes into force."""
        before = self.amender.timeline
        timeline, needs_other = await self.amender.follow(follows or self.state.plan, resumed)
        plan = plan_of("a", version=version).model_copy(
            update={"amendments": timeline.amendments, "resume": Resume(mark=Mark(step=resumed, plan=version - 1))}
        )
        self.state.plan = plan
        self.amender.begun(plan, before)
        return plan, needs_other

    def answer(self, number: int) -> tuple[bool, str] | None:
        found = self.desk.wishes.answers.get(number)
        return (found.done, found.text) if found is not None else None

    def steps(self) -> list[int]:
        return [one.from_step for one in self.amender.timeline.amendments]


@pytest.fixture
def run(tmp_path: Path) -> Amending:
    return Amending(tmp_path)


async def test_a_wish_is_in_force_and_answered_once_a_plan_has_it(run: Amending) -> None:
    plan, _ = await run.plans(1, 0)
    run.comes_to(10)
    assert run.amender.why_due(plan) == ""
    number = run.wish({"training.steps": 200})
    assert run.amender.why_due(plan) == "the owner changes training.steps = 200"
    assert run.amender.has_news
    assert (run.amender.timeline.last_step, run.amender.wanted.last_step) == (90, 200)
    assert run.answer(number) is None
    plan, needs_other = await run.plans(2, 10)
    assert not needs_other
    assert run.answer(number) == (True, "in force from step 11")
    assert run.amender.timeline.last_step == 200
    assert run.amender.why_due(plan) == ""


async def test_a_plan_that_never_came_into_force_has_changed_nothing(run: Amending) -> None:
    first, _ = await run.plans(1, 0)
    run.comes_to(10)
    number = run.wish({"training.clip_norm": 0.5})
    timeline, _ = await run.amender.follow(first, 10)  # offered, and not taken
    assert len(timeline.amendments) == 1
    run.comes_to(12)
    assert run.answer(number) is None
    await run.plans(3, 12, first)
    assert run.steps() == [13]


async def test_after_a_fault_changes_come_where_they_came_before(run: Amending) -> None:
    await run.plans(1, 0)
    run.comes_to(10)
    run.wish({"training.clip_norm": 0.5})
    await run.plans(2, 10)
    run.comes_to(30)
    run.wish({"training.global_batch": 16})
    run.wish({"plan.horizon": 9.0})
    plan, needs_other = await run.plans(3, 5)  # from a checkpoint
    assert run.steps() == [11, 31, 6]
    assert not needs_other  # the batch of step 6 is what it was
    assert run.amender.timeline.plan_end(6) == 30
    run.rows.forget_after(5)
    run.comes_to(29)
    assert run.amender.why_due(plan) == ""
    run.comes_to(30)
    assert run.amender.why_due(plan) == "the job changes with step 31"
    assert not run.amender.has_news
    assert await run.amender.aim()
    assert run.planner.settings.training.global_batch == 16
    assert (await run.plans(4, 30))[1] is False  # that is what was planned for
    assert (await run.plans(5, 20))[1] is True  # it goes back behind the change


async def test_what_cannot_be_is_answered_and_the_run_goes_on(run: Amending) -> None:
    plan, _ = await run.plans(1, 0)
    run.comes_to(10)
    refused, late = run.wish({"plan.stages": 9}), run.wish({"training.steps": 5})
    assert run.amender.why_due(plan) == ""
    assert run.answer(refused) == (False, "too many stages")
    assert "step 10 is done" in str(run.answer(late))
    number = run.wish({"plan.stages": 4})
    assert await run.amender.aim()
    await run.amender.give_up(UserError("4 nodes are needed"))
    assert run.answer(number) == (False, "4 nodes are needed; nothing was changed")
    assert run.planner.settings == Settings.of(JOB)
    assert run.amender.why_due(plan) == ""


async def test_a_coordinator_that_returns_answers_what_its_last_plan_has(run: Amending, tmp_path: Path) -> None:
    """Its process ended between the plan's coming into force and the answer."""
    number = run.wish({"training.steps": 200})
    timeline, _ = await run.amender.follow(None, 0)
    plan = plan_of("a").model_copy(update={"amendments": timeline.amendments})
    assert run.amender.recall(plan).last_step == 200
    assert run.answer(number) == (True, "in force from step 1")
    assert run.amender.timeline.last_step == run.amender.wanted.last_step == 200
