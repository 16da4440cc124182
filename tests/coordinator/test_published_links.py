"""Links that peers have published: taken over without any probing, unless something newer is known."""

import asyncio

import pytest

from dtfm_protocol.process.timeouts import TIMEOUTS
from tests.coordinator.laid_out_swarm import AB, Swarm, swarm
from tests.coordinator.peers import GBPS

__all__ = ["swarm"]  # a fixture


async def test_a_link_that_its_peer_has_measured_again_is_read_from_its_record_and_no_other(swarm: Swarm) -> None:
    """Its way has changed: nobody asks for that."""
    await swarm.trains("a", "b", "c")
    rounds = swarm.first_rounds
    by = {frozenset(pair): pair[0] for turn in rounds for pair in turn.pairs}
    reporter = by[frozenset(AB)]
    (other,) = {*AB} - {reporter}
    swarm.records.measure(reporter, other, 0.5)
    swarm.records.measure(other, reporter, 0.7)
    swarm.records.measure(reporter, "d", 0.9)
    for peer in AB:
        swarm.records.finish(peer, 1)
    await swarm.probe()
    assert swarm.state.links.gbps(*AB) == GBPS  # the record is older than what was reported since
    last = {pair[0]: turn.id for turn in rounds for pair in turn.pairs}
    for peer in AB:
        swarm.records.finish(peer, last.get(peer, 1))
    await swarm.probe()
    assert swarm.state.links.gbps(*AB) == 0.5
    assert swarm.state.links.gbps(reporter, "d") is None


async def test_links_that_were_published_are_taken_over_without_any_probing(swarm: Swarm) -> None:
    await swarm.join("a", "b", "c")
    swarm.records.measure("a", "b", 1.0)
    swarm.records.measure("b", "c", 3.0)
    await asyncio.wait_for(swarm.one.recall({"a", "b"}), 30)
    links = swarm.state.links
    assert (links.gbps("a", "b"), links.gbps("c", "b"), links.gbps("a", "c")) == (1.0, 3.0, None)
    assert swarm.control.said == []


@pytest.mark.parametrize("error", [None, OSError("the DHT does not answer"), RuntimeError("closed")])
async def test_links_that_cannot_be_read_keep_no_others_from_being_taken_over(
    swarm: Swarm, error: Exception | None
) -> None:
    swarm.records.unread["a"] = error
    swarm.records.measure("a", "c", 1.0)
    swarm.records.measure("b", "c", 3.0)
    recalling = asyncio.create_task(swarm.one.recall(["a", "b"]))
    await swarm.clock.advance(TIMEOUTS.links_read)
    await asyncio.wait_for(recalling, 30)
    assert (swarm.state.links.gbps("b", "c"), swarm.state.links.gbps("a", "c")) == (3.0, None)


async def test_a_record_that_is_older_than_the_measurement_changes_nothing(swarm: Swarm) -> None:
    await swarm.join("a", "b")
    swarm.records.measure("a", "b", 1.0)
    swarm.records.measure("b", "a", 1.0)
    for _ in range(2):
        await swarm.probe()
        assert swarm.state.links.gbps(*AB) == GBPS
    assert swarm.records.links_looked_up != []
