"""A peer that answers streams by which links are measured, and counts them."""

from typing import Self

from dtfm_node.links.timed_transfers import PROBE
from dtfm_protocol.transport.in_memory import MemoryDataPlane, MemoryNetwork
from dtfm_protocol.wire.stream import Stream


class Answering:
    """The streams that others have opened."""

    def __init__(self) -> None:
        self.opened, self.open = 0, 0

    @classmethod
    async def on(cls, network: MemoryNetwork, peer: str) -> Self:
        """Answer at `peer` from now on."""
        answering = cls()
        await MemoryDataPlane(network, peer).serve(PROBE, answering.answer)
        return answering

    async def answer(self, stream: Stream) -> None:
        """Wait until the other end closes the stream."""
        self.opened += 1
        self.open += 1
        try:
            await stream.read(1)
        finally:
            self.open -= 1
