"""Links that are suspected of having become slow: measured again, alone, and judged by what they were."""

import asyncio

import pytest

from dtfm_coordinator.links.link_degradation import FIRST_PAUSE, SECONDS, WARM_STEPS
from tests.coordinator.laid_out_swarm import AB, Swarm, swarm
from tests.coordinator.peers import GBPS, until

__all__ = ["swarm"]  # a fixture


@pytest.mark.parametrize("found", [0.1, None])
async def test_a_suspect_is_measured_again_and_no_other_and_where_it_is_slow_it_is_looked_at_later(
    swarm: Swarm, found: float | None
) -> None:
    await swarm.trains("a", "b", "c")
    swarm.gbps[frozenset(AB)] = found
    await swarm.probe(AB)
    assert swarm.asked == ["ab"]
    assert swarm.state.links.gbps(*AB) == found
    assert swarm.state.links.gbps("b", "c") == GBPS
    assert swarm.suspects() == set()
    swarm.clock.skip(FIRST_PAUSE)
    assert swarm.suspects() == {AB, AB[::-1]}


async def test_a_suspect_that_is_found_as_it_was_is_left_alone(swarm: Swarm) -> None:
    await swarm.trains("a", "b", "c")
    await swarm.probe(AB)
    assert swarm.asked == ["ab"]
    swarm.clock.skip(2 * FIRST_PAUSE)
    assert swarm.suspects() == set()


async def test_a_suspect_is_judged_by_what_it_was_before_and_not_by_what_others_are(swarm: Swarm) -> None:
    swarm.gbps[frozenset(AB)] = 0.4
    await swarm.trains("a", "b")
    swarm.gbps[frozenset(AB)] = 0.3
    await swarm.probe(AB)
    swarm.clock.skip(2 * FIRST_PAUSE)
    assert swarm.suspects() == set()


async def test_what_frames_told_before_a_look_is_no_reason_for_another(swarm: Swarm) -> None:
    await swarm.trains("a", "b")
    for step in range(1 + WARM_STEPS):
        swarm.clock.skip(SECONDS)
        await swarm.report("b", "training", plan_version=1, step=step, received_gbps={"a": 0.1})
    assert swarm.suspects() == {AB}
    await swarm.report("a")
    await swarm.probe(*swarm.suspects())
    assert swarm.state.links.gbps(*AB) == GBPS
    assert swarm.suspects() == set()


async def test_a_look_at_suspects_that_is_given_up_leaves_them_known_as_they_were(swarm: Swarm) -> None:
    await swarm.trains("a", "b", "c")
    swarm.silent = {"a", "b"}
    looking = asyncio.create_task(swarm.one.probe(swarm.ready(), {AB}))
    await until(lambda: len(swarm.rounds) == 1)
    assert swarm.state.links.gbps(*AB) is None
    looking.cancel()
    await asyncio.wait([looking])
    assert swarm.state.links.gbps(*AB) == GBPS
    assert swarm.state.links.untried(["a", "b", "c"]) == []


async def test_a_link_that_is_well_again_is_believed_at_the_second_look(swarm: Swarm) -> None:
    await swarm.trains("a", "b", "c")
    suspects = {AB}
    for found, believed in ((0.1, 0.1), (GBPS, 0.1), (GBPS, GBPS)):
        for peer in "abc":
            await swarm.report(peer)
        assert AB in suspects
        swarm.gbps[frozenset(AB)] = found
        await swarm.probe(*suspects)
        assert (swarm.state.links.gbps(*AB), swarm.state.links.gbps(*AB[::-1])) == (believed, believed)
        assert swarm.suspects() == set()
        swarm.clock.skip(FIRST_PAUSE)
        suspects = swarm.suspects()
    assert suspects == set()
