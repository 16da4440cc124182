"""The doorkeeper of the libp2p daemon: who is connected and does not show that it is a member is disconnected.

The daemon lets anybody connect, and knows no limits of its own. What a connection costs, its streams included, ends
with it.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.daemon_control import connected_peers, disconnect
from dtfm_protocol.transport.libp2p_admission import origin_of
from dtfm_protocol.transport.libp2p_limits import StreamLimits
from dtfm_protocol.transport.waiting_room import WaitingRoom


@dataclass(frozen=True)
class Orders:
    """What is to be done after a look at who is connected."""

    ask: tuple[str, ...]
    """Peers to be asked for their credentials."""
    cut: tuple[str, ...]
    """Peers to be disconnected."""


class Doorkeeper:
    """The strangers who are connected, since when, and what to do with them. No I/O."""

    def __init__(self, is_member: Callable[[str], bool], limits: StreamLimits) -> None:
        """Know nobody.

        Args:
            is_member: whether a peer has shown a credential that counts.
            limits: how many strangers may be connected, and for how long.
        """
        self._is_member, self._limits = is_member, limits
        self._since: dict[str, float] = {}
        self._members: set[str] = set()
        self._room: WaitingRoom[str] = WaitingRoom(limits.strangers, limits.strangers_of_one)

    def look(self, connected: Iterable[tuple[str, str]], now: float, *, is_tight: bool = False) -> Orders:
        """Judge who is connected. Who was a member at the last look, and is none any more, goes at once.

        Args:
            connected: each peer, and the address from which it is connected.
            now: seconds on a clock that does not jump.
            is_tight: whether the daemon has taken too much memory: then no stranger stays.
        """
        here = dict(connected)
        strangers = {peer: origin for peer, origin in here.items() if not self._is_member(peer)}
        lost = self._members & strangers.keys()
        self._members = here.keys() - strangers.keys()
        for peer in self._since.keys() - strangers.keys():
            del self._since[peer]
            self._room.leave(peer)
        cut, new = list(lost), [peer for peer in strangers if peer not in self._since]
        for peer in new:
            self._since[peer] = now
            crowded_out = self._room.enter(peer, strangers[peer])
            if crowded_out is not None:
                cut.append(crowded_out)
        cut += [peer for peer, since in self._since.items() if is_tight or now - since >= self._limits.patience]
        for peer in cut:
            self._since.pop(peer, None)  # if it is still there at the next look, it counts as new
            self._room.leave(peer)
        return Orders(tuple(peer for peer in new if peer in self._since), tuple(dict.fromkeys(cut)))


class DoorWatch:
    """The doorkeeper's rounds at one daemon."""

    def __init__(
        self,
        p2p: Any,
        daemon: int,
        is_member: Callable[[str], bool],
        ask: Callable[[str], Awaitable[object]],
        limits: StreamLimits,
    ) -> None:
        """Do nothing before `run`.

        Args:
            p2p: the client of the daemon.
            daemon: the daemon's process id.
            is_member: whether a peer has shown a credential that counts.
            ask: asks a peer for its credential; raises OSError or Refused where it does not show one.
            limits: how many strangers may be connected, and for how long.
        """
        self._p2p, self._daemon, self._ask, self._limits = p2p, daemon, ask, limits
        self._keeper = Doorkeeper(is_member, limits)

    async def run(self) -> None:
        """Look who is connected to the daemon, and carry the doorkeeper's orders out, until cancelled."""
        limits, loop = self._limits, asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while True:
                is_tight = memory_of(self._daemon) > limits.daemon_memory
                if is_tight or loop.time() >= due:
                    due = loop.time() + limits.look
                    with contextlib.suppress(P2PDaemonError, OSError, EOFError):  # it ends: see `watch` of the plane
                        await self._round(tasks, loop.time(), is_tight=is_tight)
                await asyncio.sleep(limits.glance)

    async def _round(self, tasks: asyncio.TaskGroup, now: float, *, is_tight: bool) -> None:
        found = [(peer, origin_of(address, peer)) for peer, address in await connected_peers(self._p2p)]
        orders = self._keeper.look(found, now, is_tight=is_tight)
        for peer in orders.ask:
            tasks.create_task(self._asked(peer))
        for peer in orders.cut:
            log.debug("disconnected %s, which does not show that it is a member", short(peer))
            await disconnect(self._p2p, peer)

    async def _asked(self, peer: str) -> None:
        with contextlib.suppress(Refused, OSError):  # a TimeoutError is an OSError; it is cut when its time is over
            async with asyncio.timeout(self._limits.proof):
                await self._ask(peer)


def memory_of(process: int) -> int:
    """Return the bytes of memory that a process has; 0: this system does not say (it is not Linux)."""
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
