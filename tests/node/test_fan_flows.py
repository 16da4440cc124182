"""Several flows at once, by which a peer's own line is measured where kernels count: when they are judged, and how."""

import asyncio
import contextlib

import pytest

from dtfm_node.links import fan, probe
from dtfm_node.links.flows import flow_rate
from dtfm_node.links.pacing import UplinkPacer
from dtfm_node.links.steady_rate import LONG_SECONDS, OPENED_ROUND_TRIPS, SteadyRate
from dtfm_node.links.timed_transfers import PROBE, ProbeRequest
from dtfm_node.links.witness import Witness
from dtfm_protocol.discovery.records import Limits, Link
from dtfm_protocol.transport.rate_cap import RateCap, TrafficCaps
from dtfm_protocol.wire.stream import Stream, StreamClosed, write_message
from tests.node.test_steady_rate import LOOK, Window
from tests.protocol.direct_planes import ALICE, BOB, CAROL, PATIENCE, World

LINE = 2e6
"""Bytes a second of the one line that is slow."""
NEAR = 0.4
"""Share by which a rate may be off on a busy machine: one flow alone, and two that do not share, are off by more."""


async def measured(
    line: RateCap,
    alone: float,
    witness: Witness | None = None,
    counted: tuple[float, float] = (0.0, 0.0),
    *,
    down: bool = False,
) -> Limits:
    """What Alice finds of her line, the only limit, on what she sends or else on what both others send her, where each
    of two links carries `alone` Gbit/s, and she has herself counted so much of one of them."""
    world, uplink = World(), UplinkPacer()
    # A cap of what she reads would be no line: kernels go on to receive, as much as they hold.
    own, others = (None, TrafficCaps(line)) if down else (TrafficCaps(line), None)
    async with (
        asyncio.timeout(PATIENCE),
        world.peer(ALICE, caps=own) as a,
        world.peer(BOB, caps=others) as b,
        world.peer(CAROL, caps=others) as c,
    ):
        for other in (b, c):
            await other.serve(PROBE, lambda stream: probe.answer(stream, uplink, witness or Witness()))
        limits = await fan.fan(
            a, dict.fromkeys((b.peer_id, c.peer_id), (alone, alone)), UplinkPacer(), {c.peer_id: counted}
        )
        # What another measurement, which has no flows, says at its end is no word on these.
        await write_message(await a.open(b.peer_id, PROBE), ProbeRequest(kind="found", gbps=1.0, round_trip=1e-3))
        while uplink.round_trip(a.peer_id, "direct") is None:  # noqa: ASYNC110 - it is on its way
            await asyncio.sleep(0.01)
        return limits


async def test_flows_that_share_a_line_carry_together_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who only answers tells nobody of a link by them: each had a part of it."""
    monkeypatch.setattr(fan, "_by_transfers", None)
    witness, told = Witness(), dict[str, Link]()
    witness.when_seen = told.__setitem__
    limits = await measured(RateCap(LINE), LINE * 8e-9, witness)
    assert limits.up_gbps == pytest.approx(LINE * 8e-9, rel=NEAR)
    assert limits.down_gbps is None
    assert told == {}


async def test_what_comes_over_a_shared_line_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan, "_by_transfers", None)
    limits = await measured(RateCap(LINE), LINE * 8e-9, down=True)
    assert limits.up_gbps is None
    assert limits.down_gbps == pytest.approx(LINE * 8e-9, rel=NEAR)


@pytest.mark.parametrize(("counted", "found"), [(0.0, 1.0), (2.5, 2.5), (9.0, 3.0)])
async def test_a_line_carries_what_one_link_of_it_did_alone_where_this_end_has_counted_it(
    counted: float, found: float
) -> None:
    """Flows together may be slow to open where that one is fast and far; but others' word alone makes no line faster,
    nor does what it once carried."""
    alone = LINE * 8e-9
    limits = await measured(RateCap(LINE), 3 * alone, counted=(counted * alone, 0.0))
    assert limits.up_gbps == pytest.approx(found * alone, rel=NEAR if found == 1.0 else 1e-9)


async def test_of_flows_of_which_one_breaks_nothing_is_said_and_none_goes_on() -> None:
    world, answering = World(), list[asyncio.Task[None]]()

    async def answer(stream: Stream) -> None:
        answering.append(asyncio.create_task(probe.answer(stream, UplinkPacer(), Witness())))
        with contextlib.suppress(StreamClosed):
            await answering[-1]

    async def vanish(stream: Stream) -> None:
        await stream.read(1 << 18)

    async with (
        asyncio.timeout(PATIENCE),
        world.peer(ALICE, caps=TrafficCaps(RateCap(LINE), RateCap())) as a,
        world.peer(BOB) as b,
        world.peer(CAROL) as c,
    ):
        await b.serve(PROBE, answer)
        await c.serve(PROBE, vanish)
        streams = [await a.open(other.peer_id, PROBE) for other in (b, c)]
        asked = [[ProbeRequest(kind="send", size=probe.FLOW_BYTES)]] * 2
        with pytest.raises(StreamClosed):
            await flow_rate(a, streams, asked, SteadyRate(1e-3), lambda: None, opening=PATIENCE)
        await asyncio.wait(answering)  # the other end of the flow that did not break


@pytest.mark.parametrize("round_trip", [0.002, 0.03, 0.1, 0.29])
@pytest.mark.parametrize("rate", [1e5, 3e5, 2.5e6, 1e7])
def test_flows_are_judged_once_their_windows_are_open(rate: float, round_trip: float) -> None:
    """By when each could be as fast as its link, were it alone there."""
    opened, window = fan._opening(rate, round_trip), Window(rate, round_trip)
    begun, ended = (window.come(at - round_trip)[0] for at in (opened, opened + max(0.2, 1.1 * round_trip)))
    assert ended - begun > 0.8 * rate * max(0.2, 1.1 * round_trip)


@pytest.mark.parametrize("far", [0.1, 0.19, 0.34])
def test_a_near_flow_is_not_taken_for_all_that_several_carry(far: float) -> None:
    """It is full, and even, before the far one has begun."""
    flows = [Window(2.6e5, 0.01), Window(1.3e5, far)]
    opening, rate = max(fan._opening(flow.rate, flow.round_trip) for flow in flows), SteadyRate(far, opened=True)
    at = opening
    while rate.rate is None:
        at += LOOK
        rate.came(at, sum(flow.come(at - flow.round_trip)[0] - flow.come(opening)[0] for flow in flows))
    assert rate.rate == pytest.approx(3.9e5, rel=0.1)


def test_open_windows_are_not_waited_for() -> None:
    """Where no queue grows, what comes of late does so much sooner."""
    rate, at = SteadyRate(0.3, opened=True), 0.0
    while rate.rate is None:
        at += LOOK
        rate.came(at, int(1e6 * at), 0.0)
    assert at == pytest.approx(LONG_SECONDS + OPENED_ROUND_TRIPS * 0.3, abs=2 * LOOK)
