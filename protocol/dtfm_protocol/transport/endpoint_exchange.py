"""The exchange, over libp2p, in which two peers tell each other where to connect."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from dtfm_protocol.errors import Refused
from dtfm_protocol.transport.libp2p import LibP2PDataPlane
from dtfm_protocol.transport.tls_connections import Endpoint, NoWay
from dtfm_protocol.wire.stream import Stream, Unreachable, Way, read_message, write_message

DIRECT = "direct"
"""The libp2p service at which two peers tell each other how to connect."""
MOST_TOLD = 4096
"""Peers of whom it is kept where others say that they are."""
ENDPOINT_LIMIT = 16 << 10
"""Bytes of the largest `Endpoint` message."""

Learn = Callable[[str, Endpoint, Way, bool], None]
"""A function that is told of a peer, whose peer id libp2p has proven, its endpoint, the way it came, and whether it
was asked for it."""


class EndpointExchange:
    """The exchanges of endpoints of one peer, one at a time with each other peer."""

    def __init__(
        self,
        libp2p: LibP2PDataPlane,
        own: Callable[[], Awaitable[Endpoint]],
        known: Callable[[str], Endpoint | None],
        learn: Learn,
        patience: float,
    ) -> None:
        """Keep what is needed; nothing is exchanged before `ask` or `answer`.

        Args:
            own: returns this peer's endpoint.
            known: returns the endpoint that `learn` was told last of a peer, or None.
            learn: a function that is told every endpoint that comes.
            patience: seconds for both messages of an exchange.
        """
        self._libp2p, self._own, self._known, self._learn = libp2p, own, known, learn
        self._patience = patience
        self._asking: dict[str, asyncio.Lock] = {}
        self._told: dict[str, tuple[tuple[str, ...], Endpoint]] = {}
        """Multiaddresses of peers that libp2p has not met, and their endpoints, as others say."""

    def told(self, peer: str, addresses: tuple[str, ...], endpoint: Endpoint) -> None:
        """Take note of where others say that `peer` is, until it is asked."""
        self._told[peer] = addresses, endpoint
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]

    def where_told(self, peer: str) -> Endpoint | None:
        """Return where others say that `peer` takes connections, if it has not been asked since."""
        return self._told[peer][1] if peer in self._told else None

    async def ask(self, peer: str, outdated: Endpoint | None) -> Endpoint:
        """Return the endpoint of `peer`, exchanged for this peer's unless somebody else just has.

        Args:
            outdated: what was known of it, and does not hold any more.

        Raises:
            NoWay: the peer cannot or does not do that.
        """
        async with self._asking.setdefault(peer, asyncio.Lock()):
            known = self._known(peer)
            if known is not None and known is not outdated:
                return known
            try:
                if peer in self._told:
                    with contextlib.suppress(Unreachable):  # somebody may know better
                        await self._libp2p.introduce(peer, self._told[peer][0])
                stream = await self._libp2p.open(peer, DIRECT)
                try:
                    async with asyncio.timeout(self._patience):
                        await write_message(stream, await self._own())
                        told = await read_message(stream, Endpoint, ENDPOINT_LIMIT)
                        self._learn(stream.peer, told, stream.way, True)
                finally:
                    await stream.close()
            except (ConnectionError, Refused, TimeoutError) as error:
                raise NoWay(str(error) or "no answer") from None
            finally:
                self._told.pop(peer, None)
            return told

    async def meet(self, peer: str) -> None:
        """Have `peer` be asked if it is not known, for it to know this one's endpoint, too."""
        with contextlib.suppress(NoWay):  # whoever wants a stream finds out
            await self.ask(peer, None)

    async def answer(self, stream: Stream) -> None:
        """Answer a peer's `ask`."""
        told = await read_message(stream, Endpoint, ENDPOINT_LIMIT)
        self._learn(stream.peer, told, stream.way, False)
        await write_message(stream, await self._own())
