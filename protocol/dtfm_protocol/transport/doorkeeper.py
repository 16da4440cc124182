"""The doorkeeper of the libp2p daemon: who is connected and does not show that it is a member is disconnected.

The daemon lets anybody connect, and knows no limits of its own. What a connection costs, its streams included, ends
with it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.logs import log
from dtfm_protocol.transport.member_admittance import origin_of
from dtfm_protocol.transport.stream_limits import StreamLimits
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
        self._room: WaitingRoom[str] = WaitingRoom(limits.strangers, limits.strangers_of_one)

    def look(self, connected: Iterable[tuple[str, str]], now: float) -> Orders:
        """Judge who is connected.

        Args:
            connected: each peer, and the address from which it is connected.
            now: seconds on a clock that does not jump.
        """
        strangers = {peer: origin for peer, origin in connected if not self._is_member(peer)}
        for peer in self._since.keys() - strangers.keys():
            del self._since[peer]
            self._room.leave(peer)
        cut, new = [], [peer for peer in strangers if peer not in self._since]
        for peer in new:
            self._since[peer] = now
            crowded_out = self._room.enter(peer, strangers[peer])
            if crowded_out is not None:
                cut.append(crowded_out)
        cut += [peer for peer, since in self._since.items() if now - since >= self._limits.patience]
        for peer in cut:
            self._since.pop(peer, None)  # if it is still there at the next look, it counts as new
            self._room.leave(peer)
        return Orders(tuple(peer for peer in new if peer in self._since), tuple(dict.fromkeys(cut)))


async def keep_door(
    p2p: Any, is_member: Callable[[str], bool], ask: Callable[[str], Awaitable[object]], limits: StreamLimits
) -> None:
    """Look who is connected to the daemon, and carry the doorkeeper's orders out, until cancelled.

    Args:
        p2p: the client of the daemon.
        is_member: whether a peer has shown a credential that counts.
        ask: asks a peer for its credential; raises OSError or Refused where it does not show one.
        limits: how many strangers may be connected, and for how long.
    """
    keeper = Doorkeeper(is_member, limits)

    async def asked(peer: str) -> None:
        with contextlib.suppress(Refused, OSError):  # a TimeoutError is an OSError; it is cut when its time is over
            async with asyncio.timeout(limits.proof):
                await ask(peer)

    async with asyncio.TaskGroup() as tasks:
        while True:
            with contextlib.suppress(P2PDaemonError, OSError, asyncio.IncompleteReadError):  # it ends: see its `watch`
                found = [(str(one.peer_id), str(next(iter(one.addrs), ""))) for one in await p2p.list_peers()]
                connected = [(peer, origin_of(address, peer)) for peer, address in found]
                orders = keeper.look(connected, asyncio.get_running_loop().time())
                for peer in orders.ask:
                    tasks.create_task(asked(peer))
                for peer in orders.cut:
                    log.debug("disconnected %s, which does not show that it is a member", short(peer))
                    await p2p._client.disconnect(PeerID.from_base58(peer))
            await asyncio.sleep(limits.look)
