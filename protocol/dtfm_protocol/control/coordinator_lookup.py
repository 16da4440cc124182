"""A look at the entrances that an invite names, for keys that have taken the places of its coordinators."""

import asyncio

from dtfm_protocol.control.mqtt import BrokerAddress
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import read_credential
from dtfm_protocol.identity.invite import Invite

LOOK_SECONDS = 3.0


async def look_for_new_keys(invite: Invite, coordinators: Coordinators, seconds: float = LOOK_SECONDS) -> Invite:
    """Return the invite as it would be now, and have `coordinators` know of those that answer within `seconds`.

    The signatures on standbys' cards stay the former key's.
    """
    entrances = [(invite.entrance, invite.coordinator)]
    entrances += [(standby.card.entrance, standby.card.peer) for standby in invite.standbys]
    await asyncio.gather(*(_meet(entrance, peer, coordinators, seconds) for entrance, peer in entrances))
    names = {"coordinator": coordinators.present(invite.coordinator), "dht": coordinators.renamed(invite.dht)}
    return invite.model_copy(update=names)


async def _meet(entrance: str, peer: str, coordinators: Coordinators, seconds: float) -> None:
    """Have one coordinator show its certificate."""
    address, seen = BrokerAddress.embedded(entrance, peer), list[bytes]()
    try:
        async with asyncio.timeout(seconds):
            context = address.context(None, b"", coordinators, seen.append)
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname="")
            writer.transport.abort()
        for certificate in seen:
            coordinators.follow(read_credential(certificate))
    except (OSError, Refused):  # it is not there, or somebody else is; a TimeoutError is an OSError
        return
