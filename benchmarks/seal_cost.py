"""What signatures on the all-reduce's frames cost: one bucket's all-reduce with seals, and without, in turn.

    python -m benchmarks.seal_cost [--rounds 15] [--out benchmarks/results/seal_cost.md]

All holders of a bucket of 25 MiB run in this process, over streams in memory. Seconds are the process's own, user and
system, over all its threads, a bucket and a holder; medians of rounds in which both take turns. What the frames cost on
a real way, TLS above all, is in neither side, so that the share is the largest that it can be. The sum of squares,
which both have, as both have the alarm for odd parts, is of the whole bucket at every holder; that of one part stands
beside it.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.runs import machine
from benchmarks.tables import keep, markdown, show
from dtfm_node.engine.allreduce import AllReduce
from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.exchange import TRAINING, Exchange, Hello
from dtfm_node.engine.expected_frames import step_frames
from dtfm_node.engine.frame_seals import SEAL_BYTES, FrameSeals, Seal
from dtfm_node.engine.gradient_norm import sum_of_squares
from dtfm_node.engine.part_alarm import PartAlarm
from dtfm_node.engine.runtime import Runtime
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.job.job_file import CodecName, Training, Wire
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.reductions import BUCKET_BYTES, Reduction
from dtfm_protocol.process import command_line
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Bytes, Stream, read_message

SHAPES: tuple[tuple[int, CodecName], ...] = ((2, "fp32"), (4, "fp32"), (8, "fp32"), (4, "bf16"))
"""Holders, and the wire's codec."""
ELEMENTS = BUCKET_BYTES // 4
JOB = Training(steps=1000, global_batch=8, micro_batch=1, sequence_length=1, learning_rate=1.0)
SWARM = "0" * 16


class Unsealed(FrameSeals):
    """Seals that cost nothing, and prove nothing."""

    async def hash(self, payload: Bytes) -> bytes:
        """See `FrameSeals.hash`."""
        return bytes(32)

    def seal(self, *_: Any, **__: Any) -> Seal:
        """See `FrameSeals.seal`."""
        return Seal(bytes(32), bytes(SEAL_BYTES))

    def check(self, *_: Any, **__: Any) -> None:
        """See `FrameSeals.check`."""


class Holders:
    """The peers of one bucket."""

    def __init__(self, identities: list[Identity], codec: CodecName) -> None:
        self.names = tuple(identity.peer_id for identity in identities)
        self.bucket = Bucket(0, Reduction((0,), self.names, codec), 0, ELEMENTS, after=0)
        routes = tuple((name,) for name in self.names)
        self.plan = Plan(version=1, stages=((0, 1),), routes=routes, wire=Wire(gradients=codec))
        self.exchanges: dict[str, Exchange] = {}
        self.reduces: dict[str, AllReduce] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, identities: list[Identity], codec: CodecName, seals: type[FrameSeals]
    ) -> AsyncIterator["Holders"]:
        """Run them until the block is left."""
        holders, network = cls(identities, codec), MemoryNetwork()
        async with contextlib.AsyncExitStack() as stack:
            runtime = stack.enter_context(Runtime.running(torch.device("cpu")))
            for identity in identities:
                plane = MemoryDataPlane(network, identity.peer_id)
                exchange = await stack.enter_async_context(Exchange.running(plane, 1, holders.names))
                await plane.serve(TRAINING, _answering(exchange))
                holders.exchanges[plane.peer_id] = exchange
                sealing, alarm = seals(Signer(identity, SWARM), 1), PartAlarm(holders.plan, plane.peer_id)
                holders.reduces[plane.peer_id] = AllReduce(plane.peer_id, exchange, runtime, sealing, alarm)
            yield holders

    async def seconds(self, step: int, gradients: list[torch.Tensor]) -> float:
        """All-reduce once; the processor's seconds a holder."""
        for name in self.names:
            for frame in step_frames(self.plan, name, step, JOB, 1, (self.bucket,)):
                self.exchanges[name].post(frame.sender, frame.key, frame.size, exact=frame.exact)
        begun = time.process_time()
        pairs = zip(self.names, gradients, strict=True)
        await asyncio.gather(*(self.reduces[name].run(self.bucket, step, flat) for name, flat in pairs))
        taken = time.process_time() - begun
        for reduce in self.reduces.values():
            reduce.take_receipts()
        return taken / len(self.names)


def _answering(exchange: Exchange) -> Callable[[Stream], Any]:
    async def answer(stream: Stream) -> None:
        hello = await read_message(stream, Hello)
        await (exchange.take_pulses(stream) if hello.pulses else exchange.serve(stream))

    return answer


async def measure(count: int, codec: CodecName, rounds: int) -> tuple[float, float]:
    """The median seconds without seals and with them."""
    identities = [Identity.generate() for _ in range(count)]
    found: tuple[list[float], list[float]] = ([], [])
    async with (
        Holders.running(identities, codec, Unsealed) as bare,
        Holders.running(identities, codec, FrameSeals) as sealed,
    ):
        for step in range(1, rounds + 2):
            for seconds, holders in zip(found, (bare, sealed), strict=True):
                gradients = [torch.randn(ELEMENTS) * 1e-3 for _ in range(count)]
                seconds.append(await holders.seconds(step, gradients))
    return statistics.median(found[0][1:]), statistics.median(found[1][1:])


def squares(elements: int, rounds: int) -> float:
    """The median seconds of a sum of squares."""
    values = torch.randn(elements)
    taken = []
    for _ in range(rounds):
        begun = time.thread_time()
        sum_of_squares(values)
        taken.append(time.thread_time() - begun)
    return statistics.median(taken)


HEADINGS = ("holders", "wire", "without seals", "with seals", "more", "squares of all", "squares of one part")


def row(count: int, codec: CodecName, rounds: int) -> tuple[str, ...]:
    """One shape as a row under `HEADINGS`."""
    bare, sealed = asyncio.run(measure(count, codec, rounds))
    whole, part = squares(ELEMENTS, rounds), squares(ELEMENTS // count, rounds)
    times = [f"{1e3 * seconds:.1f} ms" for seconds in (bare, sealed, sealed - bare, whole, part)]
    return (str(count), codec, *times)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="where to keep the table")
    options = parser.parse_args()
    facts, console = machine(), Console(stderr=True)
    with command_line.guarded():
        torch.set_num_threads(1)
        lines = [
            row(*shape, options.rounds)
            for shape in track(SHAPES, description="reducing", console=console, transient=True)
        ]
        title = "Processor time of a bucket of 25 MiB at each holder"
        show(title, HEADINGS, lines)
        command = f"python -m benchmarks.seal_cost --rounds {options.rounds}"
        keep(options.out, "The cost of seals", command, [f"Machine: {facts}.\n", markdown(title, HEADINGS, lines)])


if __name__ == "__main__":
    main()
