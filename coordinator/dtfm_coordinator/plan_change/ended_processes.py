"""Liveness by TCP: a peer's process has ended if connections are refused at the very ports at which it took them."""

import asyncio
from collections.abc import Awaitable, Callable

from dtfm_coordinator.membership import reachable_addresses
from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.membership.reachable_addresses import host_and_port
from dtfm_coordinator.plan_change.plan_change_events import Doors
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log

CHECKS_AT_ONCE = 32
"""Number of connections tried at once: each is a socket, of which a process has a thousand."""

IsOpen = Callable[[str, int], Awaitable[bool | None]]
"""Function that tells whether something takes connections at a host and port, as `reachable_addresses.is_open` does."""


class EndedProcesses:
    """Liveness of the members' processes, as their ports tell it."""

    def __init__(self, members: Members, is_open: IsOpen = reachable_addresses.is_open) -> None:
        self._members, self._is_open = members, is_open
        self._gate = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._told: frozenset[str] = frozenset()
        """Peers whose processes' end was logged last."""

    async def open_at(self, peers: tuple[str, ...]) -> Doors:
        """Return the peers' addresses at which they take connections now: one that never did tells nothing later."""
        known: dict[str, tuple[tuple[str, int], ...]] = {}
        for peer in peers:
            member = self._members.get(peer)
            addresses = member.profile.addresses if member is not None and member.profile is not None else ()
            known[peer] = tuple(door for address in addresses if (door := host_and_port(address)) is not None)
        answers = await self._answers(known)
        return tuple((peer, tuple(door for door in known[peer] if answers[door] is True)) for peer in peers)

    async def ended(self, known: Doors) -> frozenset[str]:
        """Return the peers that are not connected, and whose process has ended, as every one of their doors tells."""

        def is_gone(peer: str) -> bool:
            member = self._members.get(peer)
            return member is None or not member.online

        suspects = {peer: found for peer, found in known if found and is_gone(peer)}
        answers = await self._answers(suspects)
        ended = frozenset(peer for peer, found in suspects.items() if all(answers[door] is False for door in found))
        if new := ended - self._told:
            log.info("%s: the program has ended there.", ", ".join(map(short, sorted(new))))
        self._told = ended
        return ended

    async def _answers(self, known: dict[str, tuple[tuple[str, int], ...]]) -> dict[tuple[str, int], bool | None]:
        """Return what each of the doors answers."""

        async def is_open(door: tuple[str, int]) -> bool | None:
            async with self._gate:
                return await self._is_open(*door)

        every = list(dict.fromkeys(door for found in known.values() for door in found))
        return dict(zip(every, await asyncio.gather(*map(is_open, every)), strict=True))
