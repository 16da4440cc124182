"""Hosts as doctor sees them, and an invite, for the tests of its judgements."""

from dtfm_node.doctor.host_lookup import Host
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.connect_attempt import ConnectAttempt
from tests.harness.membership import SWARM

HOST = "127.0.0.1"
OWNER, OTHER = Identity.generate(), Identity.generate()
INVITE = Invite(
    swarm=SWARM,
    coordinator=OWNER.peer_id,
    dht=(f"/ip4/{HOST}/tcp/9/p2p/{OWNER.peer_id}",),
    entrance=f"{HOST}:9",
    token=EntryToken.issue(OWNER, SWARM, 1, 1 << 33),
)


def host(answer: str, ip: str = "198.51.100.1", port: int = 7700, name: str = "") -> Host:
    return Host(name or ip, port, (ConnectAttempt(ip, port, answer, 0.01),))  # type: ignore[arg-type]
