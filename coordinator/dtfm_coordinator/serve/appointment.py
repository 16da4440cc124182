"""Appointment of a coordinator that may take over: the card that introduces it, and the invite that must list it."""

from pathlib import Path

from dtfm_coordinator.serve import key_replacement
from dtfm_coordinator.serve.endpoints import Endpoints
from dtfm_coordinator.serve.serve_options import ServeOptions
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.identity.standby_card import StandbyCard
from dtfm_protocol.transport.multiaddress import announced


def card(folder: Path, options: ServeOptions) -> StandbyCard:
    """Return the card with which a coordinator with the state dir `folder` is appointed as a standby.

    Raises:
        UserError: a port is taken, or others could not reach it.
    """
    ends = Endpoints.choose(folder, options)
    identity = Identity.load_or_create(folder / key_replacement.KEY)
    host, _, _ = ends.announced_broker.rpartition(":")
    return StandbyCard(
        peer=identity.peer_id,
        certificate=authority_certificate(identity).hex(),
        entrance=ends.announced_broker,
        broker=options.external_broker,
        dht=announced(host, ends.data, identity.peer_id),
    )


def check_appointed(invite: Invite, peer: str) -> None:
    """Check that the coordinator `peer` may take over the swarm of this invite.

    Raises:
        UserError: it was not appointed.
    """
    if peer not in invite.coordinators[1:]:
        raise UserError(
            f"the invite does not list this coordinator ({short(peer)}): give the line that "
            "`dtfm-coordinator card` prints here to `serve --card` there"
        )
