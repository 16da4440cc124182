"""Peers, coordinators and disks fail at the worst of times: the run ends, and its curve is the one of one process.

The short form of `make chaos`: a few of its cases, and each of what happens to machines that takes seconds.
"""

from collections.abc import Sequence

import pytest
from benchmarks.chaos.campaign import LONE, REPLICATED, Layout, run
from benchmarks.chaos.cases import Case, at_point, coordinator_dies_at, leaves
from benchmarks.chaos.singles import broker_dies, clock_off, standby_takes_over, torn_checkpoint

from tests.harness.requirements import needs
from tests.harness.swarm import Swarm
from tests.swarm.reference import alone, same_curve

pytestmark = pytest.mark.process
STEPS = 50


async def happens(layout: Layout, cases: Sequence[Case], most_repeated: int) -> None:
    async with Swarm.running() as swarm:
        swarm.slow_down()
        outcomes = await run(swarm, layout, cases, STEPS, returning=False)
        assert [outcome.case for outcome in outcomes] == list(cases)
        assert sum(outcome.repeated for outcome in outcomes) <= most_repeated
        rows, reference = swarm.rows(), await alone(swarm.folder / "job.toml")
        # An evaluation that a fault interrupts is not made up for.
        cut_short = [row["step"] for row in rows if row["eval_loss"] is None and row["step"] % 10 == 0]
        assert len(cut_short) <= len(cases)
        same_curve(rows, [row | ({"eval_loss": None} if row["step"] in cut_short else {}) for row in reference])


async def test_a_lone_stage_is_lost_in_the_middle_of_a_frame_and_another_one_leaves() -> None:
    await happens(LONE, [at_point("mid-frame", -1, "only replica"), leaves(0)], most_repeated=15)


async def test_the_arbiter_dies_between_two_commits_and_nothing_is_repeated() -> None:
    await happens(REPLICATED, [at_point("mid-commit", 0, "one of two"), leaves(-1)], most_repeated=0)


async def test_a_replica_dies_when_the_last_step_is_made_and_the_others_hand_it_in() -> None:
    """No step is left to the plan that follows: what the last one led to is all that it has to bring."""
    steps = 30
    async with Swarm.running() as swarm:
        layout = ("--plan", swarm.plan(REPLICATED.stages, REPLICATED.routes), "--min-nodes", REPLICATED.nodes)
        coordinator = await swarm.serve(swarm.job(steps, checkpoint=20), *layout, "--exit-when-done")
        for _ in range(REPLICATED.nodes):
            await swarm.join()
        await swarm.until(lambda: swarm.step >= 5, "the first steps are done", 180)
        (victim, *_) = swarm.serving(0)
        victim.arm(f"after-apply@{steps}:kill")
        assert await coordinator.exit_code() == 0
        assert not victim.alive
        assert swarm.checkpoints()[-1] == steps


async def test_the_coordinator_dies_before_the_plan_that_replaces_a_peer_is_in_force() -> None:
    await happens(REPLICATED, [coordinator_dies_at("before-in-force")], most_repeated=1)


async def test_a_second_coordinator_takes_over() -> None:
    async with Swarm.running() as swarm:
        assert "took over" in await standby_takes_over(swarm)


@needs("mosquitto")
async def test_training_does_not_notice_that_its_broker_is_gone_for_a_while() -> None:
    async with Swarm.running() as swarm:
        assert "no new plan" in await broker_dies(swarm)


async def test_a_checkpoint_that_was_cut_short_is_found_by_its_hash() -> None:
    async with Swarm.running() as swarm:
        assert "refused by its hash" in await torn_checkpoint(swarm)


@needs("cc")
async def test_nodes_whose_clocks_are_an_hour_off_train_and_are_told() -> None:
    async with Swarm.running() as swarm:
        said = await clock_off(swarm)
    assert "behind the coordinator's" in said
    assert "ahead of the coordinator's" in said
