"""Invites for tests, to swarms of which there need be nothing but an address."""

from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from tests.harness.membership import SWARM


def invite_to(owner: Identity, port: int, host: str = "127.0.0.1", swarm: str = SWARM) -> Invite:
    """Make an invite by `owner` whose entrance, and whose door to the DHT, is one port."""
    return Invite(
        swarm=swarm,
        coordinator=owner.peer_id,
        dht=(f"/ip4/{host}/tcp/{port}/p2p/{owner.peer_id}",),
        entrance=f"{host}:{port}",
        token=EntryToken.issue(owner, swarm, 1, 1 << 39),
    )
