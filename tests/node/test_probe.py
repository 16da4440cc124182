"""Probing a link: figures that fit the link, on a clock of the test's own."""

import asyncio
import math
from typing import Any

import pytest

from dtfm_node.links import fan, probe, rate_search
from dtfm_node.links import timed_transfers as transfers
from dtfm_node.links.pacing import HEADROOM, UplinkPacer
from dtfm_node.links.timed_transfers import PROBE
from dtfm_node.links.witness import Witness
from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork, MemoryStream
from dtfm_protocol.wire.stream import Bytes, BytesOnTheWay, Stream, StreamClosed, Unreachable, write_message


class Clock:
    """Seconds that pass only where the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = math.inf
        """Bytes a second that the sender of a transfer was asked not to exceed."""
        self.queued: float | None = None
        """What streams say of their queue."""
        self.round_trip: float | None = None
        """What kernels say of it."""

    def perf_counter(self) -> float:
        return self.now


class Shaped:
    """One end of a stream to which data come with so many bits a second, and a delay, on `clock`."""

    def __init__(self, inner: Stream, clock: Clock, down: float, delay: float) -> None:
        self.peer, self.way, self._inner, self._clock = inner.peer, "relayed", inner, clock
        self._down, self._delay = down, delay
        self._said = False

    async def read(self, size: int) -> Bytes:
        data = await self._inner.read(size)
        if self._said:  # the first byte that answers what was said last comes a round trip later
            self._clock.now += 2 * self._delay
        self._said = False
        self._clock.now += size / min(self._down / 8, self._clock.pace)
        return data

    async def write(self, *buffers: Bytes) -> None:
        self._said = True
        await self._inner.write(*buffers)

    def delivered(self) -> None:
        """It does not say."""

    def queued(self) -> float | None:
        return self._clock.queued

    def progress(self) -> BytesOnTheWay | None:
        return None if self._clock.round_trip is None else BytesOnTheWay(0, 0.0, self._clock.round_trip)

    def pace(self, bytes_per_second: float) -> None:
        self._clock.pace = bytes_per_second

    def grow_until_loss(self) -> None:
        """It has no window."""

    async def close(self) -> None:
        await self._inner.close()

    def drop(self) -> None:
        self._inner.drop()


class ShapedPlane(MemoryDataPlane):
    """A plane whose streams go over a slow link."""

    def __init__(self, network: MemoryNetwork, clock: Clock, down: float, delay: float) -> None:
        super().__init__(network, "me")
        self._shape = (clock, down, delay)

    async def open(self, peer: str, service: str) -> Stream:  # type: ignore[override]
        return Shaped(await super().open(peer, service), *self._shape)


def known(round_trip: float) -> UplinkPacer:
    """Of a node that has measured its link to the other one before."""
    uplink = UplinkPacer()
    uplink.measured("other", 2e-3, round_trip, "relayed")
    return uplink


def keep_time(monkeypatch: pytest.MonkeyPatch, clock: "Clock") -> None:
    """Have all that takes times read them from `clock`."""
    for module in (probe, transfers):
        monkeypatch.setattr(module, "time", clock)


async def answering(network: MemoryNetwork, peer: str = "other") -> None:
    await MemoryDataPlane(network, peer).serve(PROBE, lambda stream: probe.answer(stream, UplinkPacer(), Witness()))


@pytest.mark.parametrize(
    ("up", "down", "delay"),
    [(10e6, 50e6, 0.02), (1e9, 1e9, 0.0005), (20e6, 1e9, 0.15), (1e9, 1e9, 0.05), (1e6, 2e6, 0.001)],
    ids=["home", "lab", "far", "fast and far", "thin"],
)
async def test_a_probe_finds_a_links_delay_and_both_speeds(
    monkeypatch: pytest.MonkeyPatch, up: float, down: float, delay: float
) -> None:
    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)

    async def answer(stream: Stream) -> None:
        await probe.answer(Shaped(stream, clock, up, 0.0), UplinkPacer(), Witness())

    await MemoryDataPlane(network, "other").serve(PROBE, answer)
    link = await probe.probe(ShapedPlane(network, clock, down, delay), "other", UplinkPacer())
    assert link.round_trip_ms == pytest.approx(2e3 * delay, rel=0.1, abs=0.2)
    assert link.sent_gbps == pytest.approx(up * 1e-9, rel=0.1)
    assert link.received_gbps == pytest.approx(down * 1e-9, rel=0.1)
    assert link.way == "relayed"


@pytest.mark.parametrize(
    ("up", "down", "delay", "seconds"),
    [(10e6, 50e6, 0.02, 4), (1e9, 1e9, 0.0005, 4), (20e6, 1e9, 0.15, 9), (4e9, 4e9, 0.0001, 1)],
    ids=["home", "lab", "far", "one machine"],
)
@pytest.mark.parametrize("queued", [None, 0.0, 0.5])
async def test_a_quick_probe_finds_both_speeds_about_in_seconds(
    monkeypatch: pytest.MonkeyPatch, up: float, down: float, delay: float, seconds: float, queued: float | None
) -> None:
    clock, network = Clock(), MemoryNetwork()
    clock.queued = queued
    keep_time(monkeypatch, clock)

    async def answer(stream: Stream) -> None:
        await probe.answer(Shaped(stream, clock, up, 0.0), UplinkPacer(), Witness())

    await MemoryDataPlane(network, "other").serve(PROBE, answer)
    link = await probe.probe(ShapedPlane(network, clock, down, delay), "other", UplinkPacer(), quick=True)
    assert link.round_trip_ms == pytest.approx(2e3 * delay, rel=0.1, abs=0.2)
    assert link.sent_gbps == pytest.approx(up * 1e-9, rel=0.2)
    assert link.received_gbps == pytest.approx(down * 1e-9, rel=0.2)
    assert clock.now < seconds


@pytest.mark.parametrize(
    ("told", "before", "is_believed"),
    [(0.0997, None, True), (0.0997, 0.09, True), (0.0997, 0.04, False), (0.015, None, False), (4294.0, None, False)],
    ids=["new", "known", "behind training's data", "near", "never taken"],
)
async def test_where_somebody_waits_the_kernel_tells_the_round_trip_of_a_far_link(
    monkeypatch: pytest.MonkeyPatch, told: float, before: float | None, is_believed: bool
) -> None:
    clock, network, asked = Clock(), MemoryNetwork(), list[str]()
    clock.round_trip, write = told, probe.write_message

    async def written(stream: Stream, message: Any) -> None:
        asked.append(getattr(message, "kind", ""))
        await write(stream, message)

    keep_time(monkeypatch, clock)
    monkeypatch.setattr(probe, "write_message", written)
    await answering(network)
    uplink = UplinkPacer() if before is None else known(before)
    for quick in (True, False):
        asked.clear()
        link = await probe.probe(ShapedPlane(network, clock, 2e6, 0.05), "other", uplink, quick=quick)
        assert ("echo" not in asked) == (quick and is_believed)
        assert link.round_trip_ms == pytest.approx(told * 1e3 if quick and is_believed else 100.0, rel=0.1)
        uplink = UplinkPacer() if before is None else known(before)


@pytest.mark.parametrize(("way", "streams"), [("direct", probe.QUICK_STREAMS), ("punched", 1), ("relayed", 1)])
async def test_where_streams_take_long_to_open_one_does(
    monkeypatch: pytest.MonkeyPatch, way: Any, streams: int
) -> None:
    network, opened = MemoryNetwork(), list[str]()
    await answering(network)
    plane = MemoryDataPlane(network, "me")
    plane.ways["other"], opens = way, plane.open

    async def noted(peer: str, service: str) -> MemoryStream:
        opened.append(peer)
        return await opens(peer, service)

    monkeypatch.setattr(plane, "open", noted)
    await probe.probe(plane, "other", UplinkPacer(), quick=True)
    assert opened == ["other"] * streams


@pytest.mark.parametrize("way", [0, 1], ids=["sends", "receives"])
@pytest.mark.parametrize("end", ["here", "there"])
async def test_a_probe_says_when_either_end_sends_or_receives_much_else_meanwhile(
    monkeypatch: pytest.MonkeyPatch, end: str, way: int
) -> None:
    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)
    ours, theirs, counted = UplinkPacer(), UplinkPacer(), [0, 0]

    def busy() -> tuple[int, int]:
        counted[way] += 1 << 26
        return counted[0], counted[1]

    async def answer(stream: Stream) -> None:
        await probe.answer(Shaped(stream, clock, 1e6, 0.0), theirs, Witness())

    await MemoryDataPlane(network, "other").serve(PROBE, answer)
    alone = await probe.probe(ShapedPlane(network, clock, 1e6, 0.01), "other", ours, quick=True)
    assert not alone.is_least
    (ours if end == "here" else theirs).traffic = busy
    shared = await probe.probe(ShapedPlane(network, clock, 1e6, 0.01), "other", ours, quick=True)
    assert shared.is_least


async def test_a_round_trip_alone_moves_no_data_and_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)
    await answering(network)
    assert await probe.echo(ShapedPlane(network, clock, 1e6, 0.05), "other") == pytest.approx(0.1, rel=0.1)
    assert clock.now < 1.2
    with pytest.raises(ConnectionError):
        await probe.echo(ShapedPlane(network, clock, 1e6, 0.05), "nobody")


async def test_a_thin_link_is_not_kept_busy_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer that is long enough to tell, and not the first one, is the last one."""
    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)
    await answering(network)
    await probe.probe(ShapedPlane(network, clock, 1e6, 0.01), "other", UplinkPacer())
    assert clock.now < 2 * (3 * 8 * rate_search.FIRST_BYTES / 1e6 + 1)


async def test_where_no_queue_grows_a_link_may_carry_more_and_is_tried_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TCP may have stopped opening its window early: two transfers that agree then say nothing."""
    clock, network, spent = Clock(), MemoryNetwork(), []
    keep_time(monkeypatch, clock)
    await MemoryDataPlane(network, "other").serve(
        PROBE, lambda stream: probe.answer(Shaped(stream, clock, 2e6, 0.0), UplinkPacer(), Witness())
    )
    for clock.queued in (None, 0.5, 0.0):
        clock.now = 0.0
        await probe.probe(ShapedPlane(network, clock, 2e6, 0.005), "other", UplinkPacer())
        spent.append(clock.now)
    assert max(spent[:2]) < 6
    assert 2 * 6 < spent[2] < 2 * (rate_search.LONG_SECONDS + 3.0)


@pytest.mark.parametrize(
    ("which", "factor", "seconds"),
    # Kept from reading, beside others, late, interrupted. A first transfer of 4 s is believed, as a thin link's.
    [(which, *how) for how in [(0.0, 1e-6), (1.3, 0.0), (1.0, 0.9)] for which in (1, 2, 3, 4)]
    + [(which, 1.0, 4.0) for which in (2, 3, 4)],
)
@pytest.mark.parametrize("rate", [2e6, 20e6, 200e6])
@pytest.mark.parametrize("before", [None, 0.01], ids=["new", "known"])
async def test_one_transfer_that_is_disturbed_makes_no_link_faster_or_slower(
    monkeypatch: pytest.MonkeyPatch, which: int, factor: float, seconds: float, rate: float, before: float | None
) -> None:
    """Who is kept from reading finds all of it there at once. What is faster than the link fills its queue, and then
    loses packets."""
    transfer, number = transfers.transfer, 0

    async def disturbed(stream: Stream, kind: Any, size: int, pace: float) -> tuple[float, int]:
        nonlocal number
        number += 1
        taken, others = await transfer(stream, kind, size, pace)
        clock.queued = max(0.0, 8 * min(pace, rate / 2) / rate - 1) * taken
        more = 0.5 * taken if clock.queued > 0.5 else 0.0
        if number == which:
            more += (factor - 1) * taken + seconds
        clock.now += max(0.0, more)
        return taken + more, others

    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)
    monkeypatch.setattr(probe, "transfer", disturbed)
    await MemoryDataPlane(network, "other").serve(
        PROBE, lambda stream: probe.answer(Shaped(stream, clock, rate, 0.0), UplinkPacer(), Witness())
    )
    uplink = UplinkPacer() if before is None else known(before)
    link = await probe.probe(ShapedPlane(network, clock, rate, 0.005), "other", uplink)
    assert link.sent_gbps == pytest.approx(rate * 1e-9, rel=0.05)
    assert clock.now < 25


async def test_a_probe_waits_until_what_training_had_under_way_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is no part of the round trip, and its last bytes would share the link with the first transfer."""
    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)
    await answering(network)

    class Draining(ShapedPlane):
        async def open(self, peer: str, service: str) -> Stream:  # type: ignore[override]
            stream = await super().open(peer, service)
            read = stream.read

            async def late(size: int) -> Bytes:
                stream._delay = 0.01 + max(0.0, 1.5 - clock.now / 4)  # type: ignore[attr-defined]
                return await read(size)

            stream.read = late  # type: ignore[method-assign]
            return stream

    link = await probe.probe(Draining(network, clock, 2e6, 0.0), "other", known(0.02))
    assert link.round_trip_ms == pytest.approx(20.0, rel=0.1)


async def test_a_link_that_has_become_longer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)
    await answering(network)
    link = await probe.probe(ShapedPlane(network, clock, 2e6, 0.5), "other", known(0.02))
    assert link.round_trip_ms == pytest.approx(1000.0, rel=0.1)
    assert clock.now < probe.DRAIN_SECONDS + 20


async def test_a_link_that_has_become_slow_is_measured_by_one_transfer_each_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it lasts, training waits for it."""
    clock, network, number = Clock(), MemoryNetwork(), 0
    transfer = transfers.transfer

    async def counted(*given: Any) -> float:
        nonlocal number
        number += 1
        return await transfer(*given)

    keep_time(monkeypatch, clock)
    monkeypatch.setattr(probe, "transfer", counted)
    clock.queued = 1.5
    await MemoryDataPlane(network, "other").serve(
        PROBE, lambda stream: probe.answer(Shaped(stream, clock, 2e5, 0.0), UplinkPacer(), Witness())
    )
    link = await probe.probe(ShapedPlane(network, clock, 2e5, 0.01), "other", known(0.02))
    assert number == 2
    assert link.sent_gbps == pytest.approx(2e-4, rel=0.1)
    assert clock.now < 7


async def test_frames_wait_at_both_ends_while_their_link_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    network, ours, theirs = MemoryNetwork(), UplinkPacer(), UplinkPacer()
    transfer, waiting = transfers.transfer, []

    async def watched(*given: Any) -> float:
        if not waiting:
            waiting.extend(asyncio.create_task(free) for free in (ours.free("other"), theirs.free("me")))
            waiting.append(asyncio.create_task(ours.free("third")))
        took = await transfer(*given)
        assert [free.done() for free in waiting] == [False, False, True]
        return took

    monkeypatch.setattr(probe, "transfer", watched)
    await MemoryDataPlane(network, "other").serve(PROBE, lambda stream: probe.answer(stream, theirs, Witness()))
    async with asyncio.timeout(30):
        await probe.probe(MemoryDataPlane(network, "me"), "other", ours)
        await asyncio.gather(*waiting)


async def test_on_a_link_too_fast_to_time_the_figures_are_still_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, network = Clock(), MemoryNetwork()
    keep_time(monkeypatch, clock)
    await answering(network)
    link = await probe.probe(ShapedPlane(network, clock, 1e18, 1e-9), "other", UplinkPacer())
    assert 0 < link.sent_gbps < 1e12
    assert 0 < link.received_gbps < 1e12


async def test_a_peer_that_does_not_answer_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        await probe.probe(MemoryDataPlane(MemoryNetwork(), "me"), "other", UplinkPacer())


async def test_a_peer_that_vanishes_in_the_middle_is_a_closed_stream() -> None:
    network = MemoryNetwork()

    async def vanish(stream: Stream) -> None:
        await stream.read(20)

    await MemoryDataPlane(network, "other").serve(PROBE, vanish)
    with pytest.raises(StreamClosed):
        await probe.probe(MemoryDataPlane(network, "me"), "other", UplinkPacer())


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "echo", "size": -1},
        {"kind": "fetch", "size": rate_search.LAST_BYTES + 1},
        {"kind": "fetch", "pace": 1e300},
        {"kind": "found", "gbps": 1e300},
    ],
)
async def test_a_request_for_what_no_link_has_is_refused(message: dict[str, object]) -> None:
    ours, theirs = MemoryStream.pair("me", "other")
    await write_message(ours, transfers.ProbeRequest.model_construct(**message))
    with pytest.raises(Refused, match="ProbeRequest"):
        await probe.answer(theirs, UplinkPacer(), Witness())


async def test_an_answer_ends_with_its_stream() -> None:
    ours, theirs = MemoryStream.pair("me", "other")
    answer = asyncio.create_task(probe.answer(theirs, UplinkPacer(), Witness()))
    await ours.close()
    with pytest.raises(StreamClosed):
        await answer


async def test_links_that_share_a_line_carry_together_what_the_line_does(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, network = Clock(), MemoryNetwork()  # the clock goes on with every byte that comes to anybody: a shared line
    keep_time(monkeypatch, clock)

    async def answer(stream: Stream) -> None:
        await probe.answer(Shaped(stream, clock, 20e6, 0.0), UplinkPacer(), Witness())

    for peer in "abc":
        await MemoryDataPlane(network, peer).serve(PROBE, answer)
    limits = await fan.fan(
        ShapedPlane(network, clock, 50e6, 0.01), dict.fromkeys("abc", (0.02, 0.05)), UplinkPacer(), {}
    )
    assert limits.up_gbps == pytest.approx(0.02, rel=0.1)
    assert limits.down_gbps == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(("round_trip", "opening"), [(None, 0.1), (0.02, 0.1), (0.25, 0.25), (4294.0, 0.3)])
async def test_before_links_are_measured_together_their_windows_are_opened_for_a_round_trip(
    monkeypatch: pytest.MonkeyPatch, round_trip: float | None, opening: float
) -> None:
    """Else far links seem to carry less together, as what is on the way at a time grows with each round trip."""
    clock, network, made = Clock(), MemoryNetwork(), list[list[int]]()
    carried, clock.round_trip = transfers.transfers, round_trip

    async def noted(stream: Stream, kind: Any, sizes: list[int], pace: float) -> list[float]:
        made.append(sizes)
        return await carried(stream, kind, sizes, pace)

    keep_time(monkeypatch, clock)
    monkeypatch.setattr(fan, "transfers", noted)
    await answering(network)
    await fan.fan(ShapedPlane(network, clock, 1e9, 0.01), {"other": (0.02, 0.04)}, UplinkPacer(), {})
    assert made == [[int(rate * seconds) for seconds in (opening, 0.4)] for rate in (2.5e6, 5e6)]


async def test_links_that_carry_all_at_once_have_no_common_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_time(monkeypatch, Clock())
    network = MemoryNetwork()
    for peer in "abc":
        await answering(network, peer)
    limits = await fan.fan(MemoryDataPlane(network, "me"), dict.fromkeys("abc", (0.02, 0.05)), UplinkPacer(), {})
    assert (limits.up_gbps, limits.down_gbps) == (None, None)


async def test_both_sides_learn_what_they_can_send(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, network, ours, theirs = Clock(), MemoryNetwork(), UplinkPacer(), UplinkPacer()
    keep_time(monkeypatch, clock)

    async def answer(stream: Stream) -> None:
        await probe.answer(Shaped(stream, clock, 1e9, 0.0), theirs, Witness())

    await MemoryDataPlane(network, "other").serve(PROBE, answer)
    link = await probe.probe(ShapedPlane(network, clock, 2e6, 0.01), "other", ours)
    async with asyncio.timeout(30):
        while theirs.round_trip("me", "relayed") is None:  # noqa: ASYNC110 - it is on its way
            await asyncio.sleep(0)
    for uplink, peer, gbps in ((ours, "other", link.sent_gbps), (theirs, "me", link.received_gbps)):
        assert uplink.pace(peer) == pytest.approx(HEADROOM * gbps * 1.25e8)
        assert uplink.round_trip(peer, "relayed") == pytest.approx(link.round_trip_ms * 1e-3)
