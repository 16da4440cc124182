"""Holders of one bucket, each with an all-reduce of its own, on an in-memory network."""

import asyncio
import contextlib
import hashlib
import typing
from collections.abc import AsyncIterator, Callable
from typing import Any

import torch

from dtfm_node.engine.allreduce import AllReduce
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.expected_frames import step_frames
from dtfm_node.engine.frame_seals import SEAL_BYTES, FrameSeals
from dtfm_node.engine.host_copies import HostCopies
from dtfm_node.engine.part_alarm import PartAlarm
from dtfm_node.engine.runtime import Compute, Runtime
from dtfm_protocol.job.job_file import CodecName, Training, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reduction_trees import ReductionTrees, Trees
from dtfm_protocol.plan.reductions import reductions
from dtfm_protocol.plan.summed_parts import SummedParts
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.codecs import payload_bytes
from dtfm_protocol.wire.frames import HEADER_BYTES, Key, Kind
from dtfm_protocol.wire.stream import Bytes, Stream, read_message
from tests.harness.named_peers import signer_of

STEP = 3
COUNTS = [1, 2, 3, 5]
CODECS: tuple[CodecName, ...] = typing.get_args(CodecName)
CPU = torch.device("cpu")
TRAINING_JOB = Training(steps=99, global_batch=5, micro_batch=1, sequence_length=1, learning_rate=1.0)


def gradients(holders: int, elements: int, spread: float = 1e-4, seed: int = 0) -> list[torch.Tensor]:
    """One flat gradient a holder, of magnitudes as they occur."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator) * spread * (number + 1) for number in range(holders)]


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    await asyncio.sleep(0)
    return function(*arguments)


class Holders:
    """The peers of one bucket, each with an all-reduce of its own."""

    def __init__(
        self,
        count: int,
        elements: int,
        codec: CodecName,
        compute: Compute,
        parts: tuple[int, ...] = (),
        trees: Trees = (),
    ) -> None:
        self.names = tuple(f"peer{number}" for number in range(count))
        self.plan = Plan(
            version=1,
            stages=((0, 1),),
            routes=tuple((name,) for name in self.names),
            wire=Wire(gradients=codec),
            parts=SummedParts(stages=(parts,)) if parts else None,
            trees=ReductionTrees(stages=(trees,)) if trees else None,
        )
        (reduction,) = reductions(self.plan, tied=False)
        self.bucket = Bucket(7, reduction, 0, elements, after=0)
        self.exchanges: dict[str, Exchange] = {}
        self._machine = Runtime(CPU, inline, compute, HostCopies(CPU))
        self._reduces: dict[str, AllReduce] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        count: int,
        elements: int,
        codec: CodecName = "fp32",
        compute: Compute = inline,
        parts: tuple[int, ...] = (),
        trees: Trees = (),
    ) -> AsyncIterator["Holders"]:
        holders, network = cls(count, elements, codec, compute, parts, trees), MemoryNetwork()
        async with asyncio.timeout(20), contextlib.AsyncExitStack() as stack:
            for name in holders.names:
                plane = MemoryDataPlane(network, name)
                exchange = await stack.enter_async_context(Exchange.running(plane, 1, holders.names))
                await plane.serve(TRAINING, _answering(exchange))
                holders.exchanges[name] = exchange
                seals, alarm = FrameSeals(signer_of(name), 1), PartAlarm(holders.plan, name)
                holders._reduces[name] = AllReduce(name, exchange, holders._machine, seals, alarm)
            yield holders

    def expect(self, name: str, step: int) -> None:
        for frame in step_frames(self.plan, name, step, TRAINING_JOB, 1, (self.bucket,)):
            self.exchanges[name].post(frame.sender, frame.key, frame.size, exact=frame.exact)

    async def reduce(self, name: str, step: int, flat: torch.Tensor) -> float:
        return await self._reduces[name].run(self.bucket, step, flat)

    async def send(self, sender: str, to: str, key: Key, payload: Bytes, **claims: Any) -> None:
        """Send a frame of five ones, with the sender's seal, which says what is true but for the `claims`."""
        seal = b""
        if key.kind is Kind.REDUCED:
            seals = FrameSeals(signer_of(claims.get("signer", sender)), 1)
            digest = claims.get("digest", hashlib.sha256(payload).digest())
            seal = seals.seal(claims.get("sealed", key), digest, claims.get("squares", 5.0)).signature
        await self.exchanges[sender].send(to, key, payload, seal)

    async def step(self, flats: list[torch.Tensor], step: int = STEP) -> list[float]:
        """Reduce in place; the sums of squares that each holder has found."""
        for name in self.names:
            self.expect(name, step)
        squares = await asyncio.gather(
            *(self.reduce(name, step, flat) for name, flat in zip(self.names, flats, strict=True))
        )
        return list(squares)


def _answering(exchange: Exchange) -> Callable[[Stream], Any]:
    async def answer(stream: Stream) -> None:
        hello = await read_message(stream, Hello)
        await (exchange.take_pulses(stream) if hello.pulses else exchange.serve(stream))

    return answer


async def reduce_all(
    flats: list[torch.Tensor], codec: CodecName, compute: Compute = inline, parts: tuple[int, ...] = ()
) -> list[float]:
    """One all-reduce; what it sends is exactly what it must."""
    async with Holders.running(len(flats), len(flats[0]), codec, compute, parts) as holders:
        squares = await holders.step(flats)
        sizes = [payload_bytes(codec, (high - low,)) for low, high in holders.bucket.parts]
        owners, others = holders.bucket.reduction.owners, len(flats) - 1
        for place, (own, exchange) in enumerate(zip(sizes, holders.exchanges.values(), strict=True)):
            assert not exchange.refused
            totals = others if place in owners else 0
            frames = len(owners) - (place in owners) + totals
            wanted = sum(sizes) - own + totals * own + frames * HEADER_BYTES + totals * SEAL_BYTES
            assert exchange.bytes_sent == wanted
        return squares
