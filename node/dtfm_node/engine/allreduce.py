"""The sharded all-reduce of one bucket: its parts' owners sum them and give all other holders the same bytes.

Each part crosses each link twice, as with the paper's colocated parameter servers, and replicas end up bit-identical,
because they all take the bytes that the part's owner sent. A holder may own no part: it sends and is sent alone.
"""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import Exchange
from dtfm_node.engine.frame_seals import FrameSeals, Seal, unsealed
from dtfm_node.engine.gradient_norm import sum_of_squares
from dtfm_node.engine.part_alarm import PartAlarm, PartsSeen, compare_parts
from dtfm_node.engine.reduction_receipts import PartReceipt, receipt_of, squares_of
from dtfm_node.engine.rejected_frames import FrameFault
from dtfm_node.engine.runtime import Runtime
from dtfm_node.engine.step_messages import StepMessage, received, reduction_messages, sent
from dtfm_node.engine.training_stage import Diverged
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.job_file import CodecName
from dtfm_protocol.process.fault_injection import point
from dtfm_protocol.wire.codec_sizes import FED_BACK
from dtfm_protocol.wire.codecs import decode, encode, is_finite
from dtfm_protocol.wire.frames import Key, Kind
from dtfm_protocol.wire.stream import Bytes

T = TypeVar("T")


class Feedback:
    """Error feedback: what lossy coding has left out of earlier gradients, by bucket, is added to the next (Seide et
    al., 2014).

    It belongs to a peer's part in one plan; a new plan begins without.
    """

    def __init__(self) -> None:
        self._left_out: dict[int, torch.Tensor] = {}

    def encode(self, group: int, gradient: torch.Tensor, part: tuple[int, int], codec: CodecName) -> torch.Tensor:
        """Code `gradient[low:high]`, where `part` is (low, high), plus what earlier coding left out, and remember what
        is left out now. Only those of `FED_BACK` leave anything out."""
        low, high = part
        if codec not in FED_BACK:
            return encode(gradient[low:high], codec)
        if group not in self._left_out:
            self._left_out[group] = torch.zeros_like(gradient)
        owed = self._left_out[group][low:high]
        owed += gradient[low:high]
        coded = encode(owed, codec)
        owed -= decode(coded, codec, tuple(owed.shape))
        return coded


class AllReduce:
    """The all-reduces of one peer under one plan."""

    def __init__(
        self,
        me: str,
        exchange: Exchange,
        machine: Runtime,
        seals: FrameSeals,
        alarm: PartAlarm,
    ) -> None:
        self._me, self._exchange, self._seals, self._alarm = me, exchange, seals, alarm
        self._compute, self._host_copies = machine.reduce, machine.host_copies
        self._feedback = Feedback()
        self._receipts: list[PartReceipt] = []

    def take_receipts(self) -> tuple[PartReceipt, ...]:
        """Return the receipts of all reduced parts since the last call, the own ones included."""
        found, self._receipts = tuple(self._receipts), []
        return found

    async def run(self, bucket: Bucket, step: int, gradient: torch.Tensor) -> float:
        """Replace a bucket's `gradient` by its sum over the holders, and return the sum of its squares; for all holders
        both are the same.

        Raises:
            PeerLost: a holder vanished, or sent what cannot be used; `gradient` is then of no use, and the step must
                not be applied.
            Diverged: the gradient, or its sum, is not finite; it is not sent then.
        """
        parts, codec = bucket.parts, bucket.reduction.codec
        messages = reduction_messages(bucket, self._me)
        if not messages:
            return float(await self._compute(sum_of_squares, gradient))
        await self._compute(_check_finite, gradient, step)
        for part in sent(messages, self._me, Kind.PART):
            payload = await self._coded(self._feedback.encode, bucket.group, gradient, parts[part.index], codec)
            await self._exchange.send(part.receiver, part.key(step), payload)
        point("mid-all-reduce", step)
        squares = [0.0] * len(parts)
        own = bucket.holders.index(self._me)
        if own in bucket.reduction.owners:
            await self._sum(bucket, own, step, gradient[slice(*parts[own])], messages)
            squares[own] = await self._give(bucket, step, gradient, messages)
        for reduced in received(messages, self._me, Kind.REDUCED):
            low, high = parts[reduced.index]
            total, squares[reduced.index] = await self._total_of(reduced, codec, step, high - low)
            await self._check_parts(bucket, reduced.index, step, gradient[low:high], {reduced.sender: total})
            await self._compute(_take, gradient[low:high], total)
        return squares_of(squares)

    async def _sum(
        self, bucket: Bucket, own: int, step: int, mine: torch.Tensor, messages: Sequence[StepMessage]
    ) -> None:
        """Replace the own part by the sum over all holders."""
        sums: dict[str, torch.Tensor] = {}
        for part in received(messages, self._me, Kind.PART):
            data = await self._exchange.receive(part.sender, part.key(step))
            sums[part.sender] = await self._decoded(part, bucket.reduction.codec, step, data, len(mine), decode)
        await self._check_parts(bucket, own, step, mine, sums)
        await self._compute(sum_of_parts, mine, [sums.get(holder) for holder in bucket.holders])
        await self._compute(_check_finite, mine, step)

    async def _give(self, bucket: Bucket, step: int, gradient: torch.Tensor, messages: Sequence[StepMessage]) -> float:
        """Send the own part's total to all others, with one seal, and return its sum of squares."""
        own = bucket.holders.index(self._me)
        part = bucket.parts[own]
        found: list[float] = []

        def total() -> torch.Tensor:
            coded = self._total(bucket, gradient, part)
            found.append(sum_of_squares(gradient[slice(*part)]))
            return coded

        payload = await self._coded(total)
        (squares,) = found
        key = Key(Kind.REDUCED, step, own, bucket.group)
        seal = self._seals.seal(key, await self._seals.hash(payload), squares)
        self._receipts.append(receipt_of(key, seal, squares))
        for reduced in sent(messages, self._me, Kind.REDUCED):
            await self._exchange.send(reduced.receiver, key, payload, seal.signature)
        return squares

    async def _check_parts(
        self, bucket: Bucket, index: int, step: int, own: torch.Tensor, sent: dict[str, torch.Tensor]
    ) -> None:
        """Refuse what nobody honest would send of part `index`, before it is added to anything.

        Raises:
            PeerLost: the first who sent such a part.
        """
        seen: PartsSeen = await self._compute(compare_parts, own, sent)
        strains = self._alarm.judge(bucket, index, step, seen)
        faults = {peer: f"a part {strain.fault}" for peer, strain in strains.items() if strain.fault}
        if lost := self._exchange.refuse_all(faults):
            raise lost

    def _total(self, bucket: Bucket, gradient: torch.Tensor, part: tuple[int, int]) -> torch.Tensor:
        """Code the sum. The owner, too, takes what the wire makes of it: all replicas must hold the same bits."""
        codec = bucket.reduction.codec
        coded = self._feedback.encode(bucket.group, gradient, part, codec)
        if codec != "fp32":
            mine = gradient[slice(*part)]
            mine.copy_(decode(coded, codec, tuple(mine.shape)))
        return coded

    async def _coded(self, encode: Callable[..., torch.Tensor], *arguments: Any) -> memoryview:
        @functools.wraps(encode)
        def run(*arguments: Any) -> tuple[torch.Tensor, Any]:
            return encode(*arguments), self._host_copies.mark()

        return await self._host_copies.to_host(*await self._compute(run, *arguments))

    async def _total_of(
        self, message: StepMessage, codec: CodecName, step: int, elements: int
    ) -> tuple[torch.Tensor, float]:
        """Return a reduced part that another holder sends, whose seal holds, and its sum of squares."""
        sender, key = message.sender, message.key(step)
        payload, signature = unsealed(await self._exchange.receive(sender, key))
        hashing = asyncio.create_task(self._seals.hash(payload))
        values, squares = await self._decoded(message, codec, step, payload, elements, _decode_and_square)
        seal = Seal(await hashing, signature)
        try:
            self._seals.check(sender, key, seal, squares)
        except Refused as error:
            raise self._exchange.refuse(sender, FrameFault.SEAL, f"{key} with a false seal: {error}") from None
        self._receipts.append(receipt_of(key, seal, squares))
        return values, squares

    async def _decoded(
        self,
        message: StepMessage,
        codec: CodecName,
        step: int,
        payload: Bytes,
        elements: int,
        decode: Callable[..., T],
    ) -> T:
        data = await self._host_copies.to_device(payload)
        try:
            decoded: T = await self._compute(decode, data, codec, (elements,))
        except Refused as error:
            text = f"{message.key(step)} with {error}"
            raise self._exchange.refuse(message.sender, FrameFault.CONTENT, text) from None
        return decoded


def sum_of_parts(mine: torch.Tensor, by_holder: list[torch.Tensor | None]) -> None:
    """Replace the own part by the sum over all holders, one addition after the other in their order, so that any device
    has the same bits of it; None in `by_holder` stands for the own one."""
    total = torch.zeros_like(mine)
    for other in by_holder:
        total += mine if other is None else other
    mine.copy_(total)


def _decode_and_square(data: torch.Tensor, codec: CodecName, shape: tuple[int, ...]) -> tuple[torch.Tensor, float]:
    values = decode(data, codec, shape)
    return values, sum_of_squares(values)


def _check_finite(gradient: torch.Tensor, step: int) -> None:
    # Looked at before it is sent: what is not finite on arrival is then the sender's fault, not the mathematics'.
    if not is_finite(gradient):
        raise Diverged(f"step {step}: a gradient is")


def _take(part: torch.Tensor, total: torch.Tensor) -> None:
    part.copy_(total)
