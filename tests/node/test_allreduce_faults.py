"""The sharded all-reduce where somebody vanishes, diverges or lies: who it was is named, and nothing of it is taken."""

import asyncio
import math
from typing import Any

import pytest
import torch

from dtfm_node.engine.mailbox import PeerLost
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.training_stage import Diverged
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.plan.summed_parts import WHOLE
from dtfm_protocol.wire.codecs import encode, to_bytes
from dtfm_protocol.wire.frames import Key, Kind
from tests.harness.manual_clock import settle
from tests.node.holders import CODECS, STEP, Holders, gradients


@pytest.mark.parametrize(("value", "faulty"), [(math.nan, 1), (math.inf, 0), (-math.inf, 2)])
@pytest.mark.parametrize("codec", CODECS)
async def test_a_holder_whose_gradient_is_not_finite_says_so_and_does_not_send_it(
    codec: CodecName, value: float, faulty: int
) -> None:
    """The mathematics has diverged: it must not look like a fault of that peer."""
    flats = gradients(3, 9)
    flats[faulty][4] = value
    async with Holders.running(3, 9, codec) as holders:
        name = holders.names[faulty]
        with pytest.raises(Diverged, match="step 3: a gradient is not finite"):
            await holders.reduce(name, STEP, flats[faulty])
        assert holders.exchanges[name].bytes_sent == 0


async def test_the_owner_of_a_part_whose_sum_is_not_finite_says_so_and_does_not_send_it() -> None:
    flats = [torch.full((9,), 3e38) for _ in range(3)]
    async with Holders.running(3, 9) as holders:
        with pytest.raises(Diverged, match="step 3: a gradient is not finite"):
            await holders.step(flats)
        await settle()
        assert not any(exchange.refused for exchange in holders.exchanges.values())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", [Kind.PART, Kind.REDUCED])
@pytest.mark.parametrize("codec", CODECS)
async def test_a_holder_that_sends_what_is_not_finite_is_lost_and_named(
    codec: CodecName, kind: Kind, value: float
) -> None:
    async with Holders.running(2, 10, codec) as holders:
        me, liar = holders.names
        holders.expect(me, STEP)
        holders.expect(liar, STEP)
        flat, lie = torch.ones(10), torch.ones(5)
        lie[2] = value
        for part in (Kind.PART, Kind.REDUCED):
            index = 0 if part is Kind.PART else 1
            payload = to_bytes(encode(lie if part is kind else torch.ones(5), codec))
            await holders.send(liar, me, Key(part, STEP, index, 7), payload)
        with pytest.raises(PeerLost) as caught:
            await holders.reduce(me, STEP, flat)
        assert caught.value.peer == liar
        assert "not finite" in str(caught.value)
        assert holders.exchanges[me].refused == {FrameFault.CONTENT: 1}


FALSE_SEALS: list[dict[str, Any]] = [
    {"digest": bytes(32)},
    {"squares": 4.0},
    {"signer": "peer0"},
    {"sealed": Key(Kind.REDUCED, STEP, 0, 7)},
    {"sealed": Key(Kind.REDUCED, STEP, 1, 6)},
    {"sealed": Key(Kind.REDUCED, STEP - 1, 1, 7)},
]


@pytest.mark.parametrize("claims", FALSE_SEALS)
async def test_a_seal_of_something_else_is_its_senders_fault(claims: dict[str, Any]) -> None:
    """Other bytes, another signer, another frame, other squares than the bytes have."""
    async with Holders.running(2, 10) as holders:
        me, liar = holders.names
        holders.expect(me, STEP)
        holders.expect(liar, STEP)
        for part in (Kind.PART, Kind.REDUCED):
            index = 0 if part is Kind.PART else 1
            payload = to_bytes(encode(torch.ones(5), "fp32"))
            await holders.send(liar, me, Key(part, STEP, index, 7), payload, **claims)
        with pytest.raises(PeerLost) as caught:
            await holders.reduce(me, STEP, torch.ones(10))
        assert caught.value.peer == liar
        assert "false seal" in str(caught.value)
        assert holders.exchanges[me].refused == {FrameFault.SEAL: 1}


async def test_what_is_sealed_as_it_was_sent_is_taken() -> None:
    """Else the test above would show nothing."""
    async with Holders.running(2, 10) as holders:
        me, other = holders.names
        holders.expect(me, STEP)
        holders.expect(other, STEP)
        for part, index in ((Kind.PART, 0), (Kind.REDUCED, 1)):
            await holders.send(other, me, Key(part, STEP, index, 7), to_bytes(encode(torch.ones(5), "fp32")))
        assert await holders.reduce(me, STEP, torch.ones(10)) == 5 * 4.0 + 5 * 1.0


async def test_a_holder_that_vanishes_is_named() -> None:
    async with Holders.running(2, 10) as holders:
        me, gone = holders.names
        holders.expect(me, STEP)
        holders.exchanges[me].lose(PeerLost(gone, "closed the stream"))
        with pytest.raises(PeerLost) as caught:
            await holders.reduce(me, STEP, torch.ones(10))
        assert caught.value.peer == gone


async def test_who_hands_on_another_total_than_it_got_is_named_not_the_owner() -> None:
    """Along a chain "peer1" hands "peer0"'s total on to "peer2"; its seal is not of those bytes."""
    async with Holders.running(3, 3, trees=((0, 0, 1), (), ()), parts=(WHOLE, 0, 0)) as holders:
        owner, relay, me = holders.names
        for name in holders.names:
            holders.expect(name, STEP)
        payload = to_bytes(encode(torch.full((3,), 9.0), "fp32"))
        key = Key(Kind.REDUCED, STEP, 0, 7)
        await holders.send(relay, me, key, payload, signer=owner, digest=bytes(32), squares=243.0)
        with pytest.raises(PeerLost) as caught:
            await holders.reduce(me, STEP, torch.ones(3))
        assert caught.value.peer == relay
        assert holders.exchanges[me].refused == {FrameFault.SEAL: 1}


async def test_what_the_owner_has_sealed_is_taken_from_who_hands_it_on() -> None:
    async with Holders.running(3, 3, trees=((0, 0, 1), (), ()), parts=(WHOLE, 0, 0)) as holders:
        owner, relay, me = holders.names
        for name in holders.names:
            holders.expect(name, STEP)
        payload = to_bytes(encode(torch.full((3,), 9.0), "fp32"))
        await holders.send(relay, me, Key(Kind.REDUCED, STEP, 0, 7), payload, signer=owner, squares=243.0)
        flat = torch.ones(3)
        assert await holders.reduce(me, STEP, flat) == 243.0
        assert torch.equal(flat, torch.full((3,), 9.0))


async def test_a_holder_that_vanishes_on_the_way_is_named() -> None:
    async with Holders.running(3, 10, trees=((0, 0, 1), (), ()), parts=(WHOLE, 0, 0)) as holders:
        _, relay, me = holders.names
        holders.expect(me, STEP)
        holders.exchanges[me].lose(PeerLost(relay, "closed the stream"))
        with pytest.raises(PeerLost) as caught:
            await holders.reduce(me, STEP, torch.ones(10))
        assert caught.value.peer == relay
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []
