"""Who says that it lives is not gone; who falls silent, or sticks to one action, is."""

import math

import pytest

from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.transport.in_memory import MemoryDataPlane
from dtfm_protocol.wire.frames import HEADER_BYTES, FrameHeader, Key, Kind
from tests.harness.manual_clock import ManualClock
from tests.node.exchanges import PLAN, Network, closed, fails, frame, key, network, pulse

__all__ = ["network"]  # a fixture


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_a_peer_that_has_nothing_to_send_says_that_it_lives_and_what_it_is_at(
    network: Network, clock: ManualClock
) -> None:
    doing = {"clock": clock, "action_seconds": lambda: 1.5}
    async with network.peer("b", clock=clock) as b, network.peer("a", **doing) as a:
        a.connect("b")
        await clock.advance(4 * TIMEOUTS.pulse)
        assert network.pulses == [FrameHeader(PLAN, Key(Kind.PULSE, 0, 1500), 0)] * 5
        assert b.patience.keys() == {"a"}
        assert a.bytes_sent == 0  # what training costs, and no more


async def test_a_peer_whose_pulses_stop_is_lost_though_its_streams_are_open(
    network: Network, clock: ManualClock
) -> None:
    """As those of a process that was stopped, or whose machine has lost its network, are."""
    async with network.peer("b", clock=clock) as b:
        b.post("a", key(), 1)
        stream = await network.raw("a", "b", pulses=True)
        await stream.write(pulse())
        await clock.advance(TIMEOUTS.silence_shortest)
        assert not b.lost
        await clock.advance(TIMEOUTS.pulse)
        assert str(await fails(b, "a", key())) == "a is gone: silent for 3.1 s (its limit: 3.0 s)"
        assert not b.refused


async def test_a_peer_whose_pulses_wait_behind_what_else_it_sends_is_not_lost(
    network: Network, clock: ManualClock
) -> None:
    class Busy(MemoryDataPlane):
        """A plane that has just heard of everybody, as long as it is said to."""

        hears = True

        def heard(self, peer: str) -> float:
            return clock.now() if self.hears else -math.inf

    plane = Busy(network.memory, "b")
    async with network.peer("b", plane, clock=clock) as b:
        b.post("a", key(), 1)
        stream = await network.raw("a", "b", pulses=True)
        await stream.write(pulse())
        await clock.advance(3 * TIMEOUTS.silence_shortest)
        assert not b.lost
        plane.hears = False
        await clock.advance(TIMEOUTS.silence_shortest + TIMEOUTS.pulse)
        assert "silent for" in str(await fails(b, "a", key()))


async def test_a_peer_that_is_stuck_is_lost_though_it_pulses(network: Network, clock: ManualClock) -> None:
    async with network.peer("b", clock=clock) as b:
        b.post("a", key(), 1)
        stream = await network.raw("a", "b", pulses=True)
        await stream.write(pulse(60_000))
        await clock.advance(TIMEOUTS.pulse)
        assert "at one action for 60 s" in str(await fails(b, "a", key()))
        assert not b.refused


async def test_who_did_not_get_to_listen_loses_nobody(network: Network, clock: ManualClock) -> None:
    """A machine that slept, or swapped, has not heard the pulses that came meanwhile."""
    async with network.peer("b", clock=clock) as b:
        stream = await network.raw("a", "b", pulses=True)
        await stream.write(pulse())
        await clock.advance(TIMEOUTS.pulse)
        clock.skip(10 * TIMEOUTS.silence_shortest)
        await clock.advance(TIMEOUTS.silence_shortest)
        assert not b.lost
        await clock.advance(TIMEOUTS.pulse)
        assert b.lost.keys() == {"a"}


async def test_the_end_of_a_peers_pulses_alone_loses_nothing_that_it_has_sent(
    network: Network, clock: ManualClock
) -> None:
    """Who ends closes all its streams at once, and the last frames may still be on their way then."""
    async with network.peer("b", clock=clock) as b:
        b.post("a", key(), 1)
        frames = await network.raw("a", "b")
        stream = await network.raw("a", "b", pulses=True)
        await stream.write(pulse())
        await stream.close()
        await clock.advance(2 * TIMEOUTS.silence_shortest)
        assert not b.patience
        await frames.write(frame(b"1", key()))
        assert await b.receive("a", key()) == b"1"
        b.post("a", key(index=1), 1)
        await frames.close()
        await fails(b, "a", key(index=1))
        assert not b.refused


@pytest.mark.parametrize(
    "data",
    [bytes(HEADER_BYTES), frame(b"", key(kind=Kind.VOTE)), FrameHeader(PLAN, Key(Kind.PULSE, 0, 0), 1).pack()],
    ids=["nonsense", "another frame", "a payload"],
)
async def test_what_is_no_pulse_among_pulses_is_its_senders_fault(network: Network, data: bytes) -> None:
    async with network.peer("b") as b:
        b.post("a", key(), 1)
        b.post("a", key(kind=Kind.VOTE), 1)
        stream = await network.raw("a", "b", pulses=True)
        await stream.write(pulse())
        await stream.write(data)
        await fails(b, "a", key())
        assert b.refused == {FrameFault.FORM: 1}


async def test_a_strangers_pulses_are_not_taken(network: Network) -> None:
    async with network.peer("b") as b:
        await closed(await network.raw("stranger", "b", pulses=True))
        assert b.refused == {FrameFault.STRANGER: 1}
        assert not b.patience


async def test_a_pulse_among_frames_is_a_frame_that_is_not_due(network: Network) -> None:
    async with network.peer("b") as b:
        stream = await network.raw("a", "b")
        await stream.write(pulse())
        await closed(stream)
        assert b.refused == {FrameFault.NOT_DUE: 1}
