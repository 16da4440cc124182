"""The entry to a DHT by peers that belong to it, tried again and again: on a busy machine, or a full line, one call may
be lost, and hivemind's own entry ends there, with its handlers still registered."""

import asyncio
from typing import Any

from hivemind.dht.protocol import ValidationError
from hivemind.p2p import PeerID

from dtfm_protocol.errors import UserError
from dtfm_protocol.transport.multiaddress import by_peer

PAUSE_SECONDS = 1.0
"""Seconds between the end of a try and the next one: a shut door is found shut at once."""


async def enter(protocol: Any, doors: tuple[str, ...], patience: float) -> None:
    """Return once a peer of a DHT has answered, and can call this one; until then all are tried again.

    Args:
        protocol: hivemind's `DHTProtocol` of this peer; it limits how long a call takes, and keeps who answers.
        doors: multiaddresses of peers of that DHT, which are known to the daemon below.
        patience: seconds after which no further try begins.

    Raises:
        UserError: nobody has answered by then, or nobody of them can call this peer.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + patience
    while True:
        faults = await asyncio.gather(*(_fault(protocol, PeerID.from_base58(peer)) for peer in by_peer(doors)))
        if None in faults:
            return
        if clock() + PAUSE_SECONDS >= end:
            where = f"{', '.join(doors)} for {patience:g} s"
            if found := next(filter(None, faults), ""):
                raise UserError(f"the DHT could not be entered at {where}: a peer answers there, but {found}")
            raise UserError(f"no DHT peer answers at {where}: is the coordinator running?")
        await asyncio.sleep(PAUSE_SECONDS)


async def _fault(protocol: Any, door: PeerID) -> str | None:
    """Return why a DHT cannot be entered by `door`: "" where it does not answer; None: it can."""
    try:
        return None if await protocol.call_ping(door, validate=True) is not None else ""
    except ValidationError as error:  # it could not call back, or its clock is another one
        return str(error)
