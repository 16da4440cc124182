"""Frames that an exchange refuses: what is not due as it is costs its sender the plan, and nobody memory."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_protocol.process.logs import log
from dtfm_protocol.wire.frames import HEADER_BYTES, FrameHeader, Kind
from dtfm_protocol.wire.stream import StreamClosed
from tests.harness.manual_clock import settle
from tests.node.exchanges import PLAN, Network, closed, fails, frame, key, network

__all__ = ["network"]  # a fixture


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What was warned of so far."""
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.WARNING, log.name)
    return lambda: [record.getMessage() for record in caplog.records]


BAD_FRAMES = {
    "another index": (frame(b"1234", key(9)), FrameFault.NOT_DUE, "a frame that is not due: ACTIVATION 9 of step 1"),
    "another step": (
        frame(b"1234", key(step=2)),
        FrameFault.NOT_DUE,
        "a frame that is not due: ACTIVATION 0 of step 2",
    ),
    "another kind": (
        frame(b"1234", key(kind=Kind.GRADIENT)),
        FrameFault.NOT_DUE,
        "a frame that is not due: GRADIENT 0 of step 1",
    ),
    "another bucket": (
        frame(b"1234", key(kind=Kind.PART, group=1)),
        FrameFault.NOT_DUE,
        "a frame that is not due: PART 0 of bucket 1 of step 1",
    ),
    "another peer's": (frame(b"1234", key(3)), FrameFault.NOT_DUE, "a frame that is not due: ACTIVATION 3 of step 1"),
    "repeated": (frame(b"1234", key(1)) * 2, FrameFault.NOT_DUE, "a frame that is not due: ACTIVATION 1 of step 1"),
    "too short": (frame(b"123", key()), FrameFault.SIZE, "3 bytes for ACTIVATION 0 of step 1 where 4 belong"),
    "too long": (frame(b"12345", key()), FrameFault.SIZE, "5 bytes for ACTIVATION 0 of step 1 where 4 belong"),
    "empty": (frame(b"", key()), FrameFault.SIZE, "0 bytes for ACTIVATION 0 of step 1 where 4 belong"),
    "huge": (
        FrameHeader(PLAN, key(), 1 << 60).pack(),
        FrameFault.SIZE,
        f"{1 << 60} bytes for ACTIVATION 0 of step 1 where 4 belong",
    ),
    "largest": (
        FrameHeader(PLAN, key(), (1 << 64) - 1).pack(),
        FrameFault.SIZE,
        f"{(1 << 64) - 1} bytes for ACTIVATION 0 of step 1 where 4 belong",
    ),
    "a vote over its limit": (
        frame(b"12", key(kind=Kind.VOTE)),
        FrameFault.SIZE,
        "2 bytes for VOTE 0 of step 1 where 1 belong",
    ),
    "a huge vote": (
        FrameHeader(PLAN, key(kind=Kind.VOTE), 1 << 60).pack(),
        FrameFault.SIZE,
        f"{1 << 60} bytes for VOTE 0 of step 1 where 1 belong",
    ),
    "next plan": (frame(b"1234", key(), PLAN + 1), FrameFault.PLAN, f"a frame of plan {PLAN + 1} under plan {PLAN}"),
    "old plan": (frame(b"1234", key(), PLAN - 1), FrameFault.PLAN, f"a frame of plan {PLAN - 1} under plan {PLAN}"),
    "more payload than said": (
        frame(b"1234", key(1)) + bytes(HEADER_BYTES),
        FrameFault.FORM,
        "what is no header: a frame does not begin like one",
    ),
    "unknown kind": (
        b"DTF2" + bytes([42]) + bytes(HEADER_BYTES - 5),
        FrameFault.FORM,
        "what is no header: a frame of unknown kind 42",
    ),
    "foreign": (
        b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n",
        FrameFault.FORM,
        "what is no header: a frame does not begin like one",
    ),
}


@pytest.mark.parametrize("bad", BAD_FRAMES)
async def test_a_frame_that_is_not_due_as_it_is_costs_its_sender_the_plan_and_nobody_memory(
    network: Network, warnings: Callable[[], list[str]], bad: str
) -> None:
    data, fault, said = BAD_FRAMES[bad]
    async with network.peer("b") as b, network.peer("c") as c:
        b.post("a", key(), 4)
        b.post("a", key(1), 4)
        b.post("a", key(kind=Kind.VOTE), 1, exact=False)
        b.post("c", key(3), 4)
        stream = await network.raw("a", "b")
        await stream.write(data)
        assert str(await fails(b, "a", key())) == f"a is gone: it sent {said}"
        assert b.refused == {fault: 1}
        assert warnings() == [f"refused a frame of a: it sent {said}"]
        assert max(network.taken["b"][0].reads) <= HEADER_BYTES
        await closed(stream)
        await c.send("b", key(3), b"good")
        assert await b.receive("c", key(3)) == b"good"
        with pytest.raises(PeerLost):
            await b.send("a", key(), b"")


async def test_a_peer_whose_frame_was_refused_is_not_listened_to_again(
    network: Network, warnings: Callable[[], list[str]]
) -> None:
    """So that a fault is named once, however often it comes."""
    async with network.peer("b") as b:
        b.post("a", key(), 4)
        other = await network.raw("a", "b")
        await settle()
        for _ in range(5):
            stream = await network.raw("a", "b")
            with contextlib.suppress(StreamClosed):
                await stream.write(frame(b"", key(), PLAN + 1))
            await closed(stream)
        await other.write(frame(b"1234", key()))
        await closed(other)
        assert b.refused == {FrameFault.PLAN: 1}
        assert len(warnings()) == 1
        assert max(read for stream in network.taken["b"] for read in stream.reads) == HEADER_BYTES


async def test_the_same_fault_of_another_peer_is_named_too(network: Network, warnings: Callable[[], list[str]]) -> None:
    async with network.peer("b") as b:
        for sender in ("a", "c"):
            stream = await network.raw(sender, "b")
            await stream.write(frame(b"", key()))
            await closed(stream)
        assert b.refused == {FrameFault.NOT_DUE: 2}
        assert [line.split(":")[0] for line in warnings()] == ["refused a frame of a", "refused a frame of c"]


async def test_contents_that_cannot_be_used_are_named_once_and_counted_each_time(
    network: Network, warnings: Callable[[], list[str]]
) -> None:
    async with network.peer("b") as b:
        for number in range(3):
            lost = b.refuse("a", FrameFault.CONTENT, f"nonsense {number}")
            assert str(lost) == f"a is gone: it sent nonsense {number}"
        assert b.refused == {FrameFault.CONTENT: 3}
        assert warnings() == ["refused a frame of a: it sent nonsense 0"]


@given(data=st.binary(max_size=80) | st.binary(max_size=40).map(lambda rest: b"DTF2" + rest))
@settings(max_examples=60, deadline=None)
def test_whatever_bytes_come_no_payload_is_read_and_the_sender_is_lost(data: bytes) -> None:
    async def exchange() -> None:
        network = Network()
        async with network.peer("b") as b:
            b.post("a", key(index=1 << 20), 4)
            stream = await network.raw("a", "b")
            with contextlib.suppress(StreamClosed):
                await stream.write(data)
            await stream.close()
            await fails(b, "a", key(index=1 << 20))
            assert b.refused.total() == (len(data) >= HEADER_BYTES)
            assert set(network.taken["b"][0].reads) == {HEADER_BYTES}

    asyncio.run(exchange())


async def test_a_frame_under_way_is_not_taken_a_second_time_on_another_stream(network: Network) -> None:
    """Else a peer could have as much memory taken for one frame as it opens streams."""
    async with network.peer("b") as b:
        b.post("a", key(), 1000)
        first, second = await network.raw("a", "b"), await network.raw("a", "b")
        await first.write(frame(bytes(1000), key())[:100])
        await second.write(frame(bytes(1000), key())[:100])
        await settle()
        assert sorted(max(stream.reads) for stream in network.taken["b"]) == [HEADER_BYTES, 1000]
        assert b.refused == {FrameFault.NOT_DUE: 1}


async def test_a_peer_that_is_not_in_the_plan_is_not_listened_to(
    network: Network, warnings: Callable[[], list[str]]
) -> None:
    async with network.peer("a") as a, network.peer("b") as b:
        b.post("a", key(), 1)
        for _ in range(3):
            await closed(await network.raw("stranger", "b"))
        assert not any(stream.reads for stream in network.taken["b"])
        assert b.refused == {FrameFault.STRANGER: 3}
        assert warnings() == ["refused a frame of ranger: it sent a training stream, and is not in the plan"]
        await a.send("b", key(), b"1")
        assert await b.receive("a", key()) == b"1"


async def test_a_crowd_of_strangers_fills_no_log_and_hides_no_peers_fault(
    network: Network, warnings: Callable[[], list[str]]
) -> None:
    async with network.peer("b") as b:
        for number in range(100):
            await closed(await network.raw(f"s{number}", "b"))
        assert b.refused == {FrameFault.STRANGER: 100}
        assert len(warnings()) == 1
        stream = await network.raw("a", "b")
        await stream.write(bytes(HEADER_BYTES))
        await closed(stream)
        assert warnings()[-1] == "refused a frame of a: it sent what is no header: a frame does not begin like one"
