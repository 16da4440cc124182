"""Who may use the line: bulk waits while anything urgent is being sent, and not longer."""

import asyncio
import math

import pytest

from dtfm_node.links.pacing import HEADROOM, UNPACED, UplinkPacer


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_line_that_nobody_uses_is_idle() -> None:
    async with asyncio.timeout(30):
        await UplinkPacer().idle("a")


async def test_bulk_waits_until_the_last_urgent_sender_is_done() -> None:
    uplink = UplinkPacer()
    with uplink.urgent():
        with uplink.urgent():
            bulk = asyncio.create_task(uplink.idle("a"))
            await settle()
            assert not bulk.done()
        await settle()
        assert not bulk.done()
    await settle()
    assert bulk.done()


async def test_an_urgent_sender_that_fails_lets_bulk_go_on() -> None:
    uplink = UplinkPacer()
    with pytest.raises(ConnectionError), uplink.urgent():
        raise ConnectionError
    async with asyncio.timeout(30):
        await uplink.idle("a")


async def test_frames_wait_while_their_link_is_measured_and_others_do_not() -> None:
    uplink = UplinkPacer()
    async with asyncio.timeout(30):
        with uplink.measuring("a"):
            with uplink.measuring("a"):
                waiting = [asyncio.create_task(wait("a")) for wait in (uplink.free, uplink.idle)]
                await uplink.free("b")
                await uplink.idle("b")
            await settle()
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)
        await uplink.free("a")


async def test_nobody_holds_frames_back_for_ever_by_measuring() -> None:
    uplink = UplinkPacer(frames_held=0.02)
    async with asyncio.timeout(30):
        with uplink.measuring("a"):
            await uplink.free("a")
            await uplink.free("a")


async def test_a_plan_that_begins_waits_for_no_measurement() -> None:
    uplink = UplinkPacer()
    async with asyncio.timeout(30):
        with uplink.measuring("a"):
            uplink.release()
            await uplink.free("a")


async def test_bulk_that_waited_for_urgent_frames_does_not_go_over_a_link_that_came_to_be_measured() -> None:
    uplink = UplinkPacer()
    with uplink.urgent():
        bulk = asyncio.create_task(uplink.idle("a"))
        await settle()
        measuring = uplink.measuring("a")
        measuring.__enter__()
    await settle()
    assert not bulk.done()
    measuring.__exit__(None, None, None)
    await bulk


def test_a_round_trip_is_known_of_the_way_that_it_was_measured_on() -> None:
    uplink = UplinkPacer()
    uplink.measured("a", 1.0, 0.02, "direct")
    assert (uplink.round_trip("a", "direct"), uplink.round_trip("a", "relayed")) == (0.02, None)


async def test_bulk_gets_a_turn_between_two_urgent_frames() -> None:
    """Also where the second one begins before bulk has noticed: it must not starve behind a busy pipeline."""
    uplink = UplinkPacer()
    with uplink.urgent():
        bulk = asyncio.create_task(uplink.idle("a"))
        await settle()
    with uplink.urgent():
        await settle()
        assert bulk.done()
        again = asyncio.create_task(uplink.idle("a"))
        await settle()
        assert not again.done()
    await again


def test_who_sends_over_a_slow_link_is_held_to_little_more_than_it_carries() -> None:
    uplink = UplinkPacer()
    assert uplink.pace("a") == math.inf
    uplink.measured("a", 0.008, 0.02, "direct")
    assert uplink.pace("a") == HEADROOM * 1e6
    assert uplink.pace("b") == math.inf
    uplink.measured("a", UNPACED * 8e-9, 0.02, "direct")  # no bottleneck any more
    assert uplink.pace("a") == math.inf
    uplink.measured("a", 0.0, 0.02, "direct")  # which nobody could send at
    assert uplink.pace("a") == math.inf


def test_a_link_that_was_measured_too_slow_is_found_out_by_what_it_delivers() -> None:
    uplink, carries = UplinkPacer(), 2e6
    uplink.measured("a", 0.008, 0.02, "direct")
    for _ in range(20):
        uplink.delivered("a", min(carries, uplink.pace("a")))
    assert uplink.pace("a") == HEADROOM * carries
    assert uplink.pace("b") == math.inf


def test_a_frame_that_came_slowly_makes_no_link_slower_than_it_was_measured() -> None:
    """Its line may have been shared just then."""
    uplink = UplinkPacer()
    uplink.measured("a", 0.008, 0.02, "direct")
    uplink.delivered("a", 1.04e6)
    uplink.delivered("a", 0.5e6)
    assert uplink.pace("a") == HEADROOM * 1e6


def test_what_was_delivered_before_a_link_was_measured_anew_counts_no_more() -> None:
    uplink = UplinkPacer()
    uplink.measured("a", 0.008, 0.02, "direct")
    uplink.delivered("a", 1.04e6)
    uplink.measured("a", 0.004, 0.02, "direct")
    assert uplink.pace("a") == HEADROOM * 0.5e6
