"""The sharded all-reduce of one bucket: every holder sums one part and gives all others the same bytes.

Each part crosses each link twice, as with the paper's colocated parameter servers, and replicas end up bit-identical,
because they all take the bytes that the part's owner sent.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import torch

from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import Exchange, Received
from dtfm_protocol.codecs import decode, encode
from dtfm_protocol.frames import Key, Kind
from dtfm_protocol.job import Wire

Compute = Callable[..., Awaitable[Any]]
"""Runs a function on the compute thread."""


async def all_reduce(
    bucket: Bucket, me: str, step: int, flat: torch.Tensor, wire: Wire, exchange: Exchange, compute: Compute
) -> float:
    """Replace `flat` by its sum over the bucket's holders; the sum of squares of the part that `me` owns.

    Raises:
        PeerLost: a holder vanished; `flat` is then of no use, and the step must not be applied.
    """
    own = bucket.holders.index(me)
    others = [(index, peer) for index, peer in enumerate(bucket.holders) if peer != me]
    for index, peer in others:
        low, high = bucket.part(index)
        payload, scale = await compute(encode, flat[low:high], wire)
        await exchange.send(peer, Key(Kind.PART, step, index, bucket.group), payload, scale)
    parts: dict[int, Received] = {}
    for index, peer in others:
        parts[index] = await exchange.receive(peer, Key(Kind.PART, step, own, bucket.group))
    low, high = bucket.part(own)
    payload, scale, squares = await compute(_sum, flat[low:high], own, parts, len(bucket.holders), wire)
    for _, peer in others:
        await exchange.send(peer, Key(Kind.REDUCED, step, own, bucket.group), payload, scale)
    for index, peer in others:
        received = await exchange.receive(peer, Key(Kind.REDUCED, step, index, bucket.group))
        low, high = bucket.part(index)
        await compute(_take, flat[low:high], received, wire)
    return float(squares)


def _sum(
    part: torch.Tensor, own: int, received: dict[int, Received], holders: int, wire: Wire
) -> tuple[memoryview, float, float]:
    """Sum a part over all holders, in their order, into `part`; its coded bytes and scale, and its sum of squares."""
    shape = tuple(part.shape)
    total = torch.zeros_like(part)
    for index in range(holders):
        if index == own:
            total += part
        else:
            total += decode(received[index].payload, received[index].scale, wire, shape).to(part.device)
    payload, scale = encode(total, wire)
    # The owner, too, takes what the wire makes of the sum: all replicas must hold the same bits.
    part.copy_(total if wire == "fp32" else decode(payload, scale, wire, shape).to(part.device))
    return payload, scale, float(part.cpu().double().square().sum())


def _take(part: torch.Tensor, received: Received, wire: Wire) -> None:
    part.copy_(decode(received.payload, received.scale, wire, tuple(part.shape)))
