"""The sharded all-reduce of one bucket: its parts' owners sum them and give all other holders the same bytes.

Parts go to their owners directly, as with the paper's colocated parameter servers, or along the plan's trees: then a
holder adds its own to what its children send, and hands totals on to them. Replicas end up bit-identical, because they
all take the bytes that the part's owner has coded and sealed. A holder may own no part.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from dtfm_node.engine.step_messages import StepMessage, part_codec, received, reduction_messages, sent
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
        messages, codec = reduction_messages(bucket, self._me), bucket.reduction.codec
        if not messages:
            return float(await self._compute(sum_of_squares, gradient))
        await self._compute(_check_finite, gradient, step)
        for part in sent(messages, self._me, Kind.PART):
            if not _of_part(received(messages, self._me, Kind.PART), part.index):  # it waits for nobody: it goes first
                bounds = bucket.parts[part.index]
                payload = await self._coded(self._feedback.encode, bucket.group, gradient, bounds, codec)
                await self._exchange.send(part.receiver, part.key(step), payload)
        point("mid-all-reduce", step)
        parts = {index: _of_part(messages, index) for index in bucket.reduction.owners}
        squares = [0.0] * len(bucket.parts)
        for index, value in zip(parts, await self._all_of(bucket, step, gradient, parts), strict=True):
            squares[index] = value
        return squares_of(squares)

    async def _all_of(
        self, bucket: Bucket, step: int, gradient: torch.Tensor, parts: Mapping[int, Sequence[StepMessage]]
    ) -> list[float]:
        """Reduce all parts side by side, and return their sums of squares: along trees, some wait for others here."""
        tasks = [
            asyncio.create_task(self._reduced(bucket, index, step, gradient, messages))
            for index, messages in parts.items()
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _reduced(
        self, bucket: Bucket, index: int, step: int, gradient: torch.Tensor, messages: Sequence[StepMessage]
    ) -> float:
        """Replace one part of the gradient by its total, and return that one's sum of squares."""
        mine, own = gradient[slice(*bucket.parts[index])], bucket.holders[index] == self._me
        if own:
            await self._sum(bucket, index, step, mine, mine, messages)
            return await self._give(bucket, step, gradient, messages)
        if received(messages, self._me, Kind.PART):
            partial = torch.empty_like(mine)
            await self._sum(bucket, index, step, mine, partial, messages)
            for part in sent(messages, self._me, Kind.PART):
                payload = await self._coded(encode, partial, part_codec(bucket, part))
                await self._exchange.send(part.receiver, part.key(step), payload)
            del partial
        (reduced,) = received(messages, self._me, Kind.REDUCED)
        return await self._take(bucket, reduced, step, mine, messages)

    async def _sum(
        self,
        bucket: Bucket,
        index: int,
        step: int,
        mine: torch.Tensor,
        into: torch.Tensor,
        messages: Sequence[StepMessage],
    ) -> None:
        """Put the sum of the own part and of all that come to this peer of it `into` a tensor."""
        sums: dict[str, torch.Tensor] = {}
        for part in received(messages, self._me, Kind.PART):
            data = await self._exchange.receive(part.sender, part.key(step))
            sums[part.sender] = await self._decoded(part, part_codec(bucket, part), step, data, len(mine), decode)
        await self._check_parts(bucket, index, step, mine, sums)
        by_holder = [sums.get(holder) for holder in bucket.holders if holder in sums or holder == self._me]
        await self._compute(sum_of_parts, mine, by_holder, into)
        await self._compute(_check_finite, into, step)

    async def _give(self, bucket: Bucket, step: int, gradient: torch.Tensor, messages: Sequence[StepMessage]) -> float:
        """Send the own part's total to those that have sent theirs, with one seal, and return its sum of squares."""
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

    async def _take(
        self, bucket: Bucket, reduced: StepMessage, step: int, mine: torch.Tensor, messages: Sequence[StepMessage]
    ) -> float:
        """Take a total, whose owner's seal holds, hand the same bytes on to those that wait for it here, and return its
        sum of squares."""
        key, owner = reduced.key(step), bucket.holders[reduced.index]
        payload, signature = unsealed(await self._exchange.receive(reduced.sender, key))
        hashing = asyncio.create_task(self._seals.hash(payload))
        codec = bucket.reduction.codec
        total, squares = await self._decoded(reduced, codec, step, payload, len(mine), _decode_and_square)
        seal = Seal(await hashing, signature)
        try:
            self._seals.check(owner, key, seal, squares)
        except Refused as error:
            # Nobody hands on what it has not checked so itself: it is the sender's fault, whoever owns the part.
            raise self._exchange.refuse(reduced.sender, FrameFault.SEAL, f"{key} with a false seal: {error}") from None
        self._receipts.append(receipt_of(key, seal, squares))
        for onward in sent(messages, self._me, Kind.REDUCED):
            await self._exchange.send(onward.receiver, key, payload, signature)
        await self._check_parts(bucket, reduced.index, step, mine, {owner: total})
        await self._compute(_replace, mine, total)
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


def sum_of_parts(mine: torch.Tensor, by_holder: list[torch.Tensor | None], into: torch.Tensor) -> None:
    """Put `into` a tensor the sum over all holders, one addition after the other in their order, so that any device has
    the same bits of it; None in `by_holder` stands for the own one, which may be what it is put into."""
    total = torch.zeros_like(mine)
    for other in by_holder:
        total += mine if other is None else other
    into.copy_(total)


def _of_part(messages: Iterable[StepMessage], index: int) -> list[StepMessage]:
    return [one for one in messages if one.index == index]


def _decode_and_square(data: torch.Tensor, codec: CodecName, shape: tuple[int, ...]) -> tuple[torch.Tensor, float]:
    values = decode(data, codec, shape)
    return values, sum_of_squares(values)


def _check_finite(gradient: torch.Tensor, step: int) -> None:
    # Looked at before it is sent: what is not finite on arrival is then the sender's fault, not the mathematics'.
    if not is_finite(gradient):
        raise Diverged(f"step {step}: a gradient is")


def _replace(part: torch.Tensor, total: torch.Tensor) -> None:
    part.copy_(total)
