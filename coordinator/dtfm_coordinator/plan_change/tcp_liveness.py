"""Whether a peer's process has ended: something refuses connections at the very ports at which it took them."""

import asyncio
from collections.abc import Awaitable, Callable

from dtfm_coordinator.membership import tcp_check
from dtfm_coordinator.membership.members import Members
from dtfm_coordinator.membership.tcp_check import door_of
from dtfm_coordinator.plan_change.plan_change_events import Doors
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log

KNOCKS_AT_ONCE = 32
"""Each is a socket, of which a process has a thousand."""

Knock = Callable[[str, int], Awaitable[bool | None]]
"""See `tcp_check.knock`."""


class TcpLiveness:
    """What the members' ports tell of their processes."""

    def __init__(self, members: Members, knock: Knock = tcp_check.knock) -> None:
        self._members, self._knock = members, knock
        self._gate = asyncio.Semaphore(KNOCKS_AT_ONCE)
        self._told: frozenset[str] = frozenset()
        """Whose end was said last."""

    async def open_at(self, peers: tuple[str, ...]) -> Doors:
        """Those of the peers' addresses at which they take connections now: one that never did tells nothing later."""
        known: dict[str, tuple[tuple[str, int], ...]] = {}
        for peer in peers:
            member = self._members.get(peer)
            addresses = member.profile.addresses if member is not None and member.profile is not None else ()
            known[peer] = tuple(door for address in addresses if (door := door_of(address)) is not None)
        answers = await self._answers(known)
        return tuple((peer, tuple(door for door in known[peer] if answers[door] is True)) for peer in peers)

    async def ended(self, known: Doors) -> frozenset[str]:
        """Peers that are not connected, and whose process has ended, as every one of their doors tells."""

        def is_gone(peer: str) -> bool:
            member = self._members.get(peer)
            return member is None or not member.online

        suspects = {peer: found for peer, found in known if found and is_gone(peer)}
        answers = await self._answers(suspects)
        ended = frozenset(peer for peer, found in suspects.items() if all(answers[door] is False for door in found))
        if new := ended - self._told:
            log.info("%s: the process has ended", ", ".join(map(short, sorted(new))))
        self._told = ended
        return ended

    async def _answers(self, known: dict[str, tuple[tuple[str, int], ...]]) -> dict[tuple[str, int], bool | None]:
        """What each of the doors answers."""

        async def knock(door: tuple[str, int]) -> bool | None:
            async with self._gate:
                return await self._knock(*door)

        every = list(dict.fromkeys(door for found in known.values() for door in found))
        return dict(zip(every, await asyncio.gather(*map(knock, every)), strict=True))
