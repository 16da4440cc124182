"""The guest's side of relays: over which of them this peer can be reached, and where that is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from typing import Any

from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.circuit_relay import GUEST
from dtfm_protocol.transport.multiaddress import CIRCUIT
from dtfm_protocol.wire.stream import Stream, StreamClosed, Unreachable

Introduce = Callable[[str, tuple[str, ...]], Coroutine[Any, Any, None]]
"""A function that connects to a peer at the multiaddresses given (`DataPlane.introduce`)."""
Open = Callable[[str, str], Coroutine[Any, Any, Stream]]
"""A function that opens a stream to a service of a peer (`DataPlane.open`)."""


class RelayGuest:
    """A peer that stays the guest of the relays that it knows, each again whenever that has ended."""

    def __init__(
        self,
        relays: Mapping[str, tuple[str, ...]],
        introduce: Introduce,
        open_stream: Open,
        retry: float,
        coordinators: Coordinators | None = None,
    ) -> None:
        """Make the guest's side of one plane.

        Args:
            relays: addresses of the relays that this peer may have.
            introduce: tells the plane where a relay is reached.
            open_stream: opens the plane's stream to a service of a relay.
            retry: seconds that the start waits for a relay, and between attempts (`Timeouts.relay_retry`).
            coordinators: know who has taken a relay's place, at its addresses; None: nobody does.
        """
        self._relays, self._retry = relays, retry
        self._coordinators = coordinators or Coordinators("", ())
        self._introduce, self._open = introduce, open_stream
        self.hosts: set[str] = set()
        """Relays over which this peer can be reached now."""
        self.is_guest = asyncio.Event()
        """Event that is set while this peer can be reached over a relay."""

    @contextlib.asynccontextmanager
    async def staying(self) -> AsyncIterator[None]:
        """Become the guest of relays and stay it; entered when there is one, or none that is there."""
        first: dict[str, asyncio.Event] = {relay: asyncio.Event() for relay in self._relays}
        stays = [asyncio.create_task(self._stay(relay, tried)) for relay, tried in first.items()]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._retry):
                    for tried in first.values():
                        await tried.wait()
                        if self.is_guest.is_set():
                            break
            yield
        finally:
            for task in stays:
                task.cancel()
            await asyncio.gather(*stays, return_exceptions=True)

    async def _stay(self, relay: str, tried: asyncio.Event) -> None:
        """Stay the guest of `relay`, again whenever that has ended, until cancelled."""
        while True:
            try:
                name = self._coordinators.present(relay)
                await self._introduce(name, self._coordinators.renamed(self._relays[relay]))
                stream = await self._open(name, GUEST)
                try:
                    await stream.read(1)
                    self.hosts.add(relay)
                    self.is_guest.set()
                    tried.set()
                    await stream.read(1)  # until the relay, or the way to it, is gone
                finally:
                    self.hosts.discard(relay)
                    if not self.hosts:
                        self.is_guest.clear()
                    await stream.close()
            except (Unreachable, StreamClosed) as error:
                log.debug("no guest of the relay %s: %s", short(relay), error)
            tried.set()
            await asyncio.sleep(self._retry)

    def addresses(self, me: str) -> tuple[str, ...]:
        """Return the multiaddresses at which this peer, `me`, is reached over relays now."""
        return self._over(self.hosts, me)

    def may_reach(self, peer: str) -> tuple[str, ...]:
        """Return the multiaddresses at which another peer is reached if it is a guest of the same relays."""
        return self._over(set(self._relays) - {peer}, peer)

    def _over(self, relays: Collection[str], peer: str) -> tuple[str, ...]:
        return tuple(
            f"{address}{CIRCUIT}/p2p/{peer}"
            for name, known in self._relays.items()
            if name in relays
            for address in self._coordinators.renamed(known)
        )
