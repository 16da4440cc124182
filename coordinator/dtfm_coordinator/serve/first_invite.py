"""Invite that `serve` prints: the addresses of a coordinator and of its standbys, and a token that lets nodes in."""

import contextlib
import time
from pathlib import Path

from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import DAY_SECONDS, Invited
from dtfm_coordinator.serve.endpoints import Endpoints
from dtfm_coordinator.serve.serve_options import ServeOptions
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from dtfm_protocol.process.state_dir import write_atomically

FIRST_INVITE_USES, FIRST_INVITE_DAYS = 100, 30.0
"""Nodes that may enter with the invite that `serve` prints, and days within which they may."""
_FILE = "invite"


def draft_invite(
    options: ServeOptions, ends: Endpoints, swarm: str, identity: Identity, folder: Path, ledger: LedgerFile
) -> Invite:
    """Return the invite of a coordinator, before the multiaddresses of its DHT peer are known.

    Args:
        options: the owner's.
        ends: where the coordinator is reached.
        swarm: the swarm's id.
        identity: the coordinator's key, which signs the token and appoints the standbys.
        folder: the state folder.
        ledger: keeps a new token.

    Raises:
        UserError: an option cannot be used, or the ledger cannot be written.
    """
    broker, ca = options.external_broker, None
    if options.broker_ca is not None:
        try:
            ca = options.broker_ca.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--broker-ca {options.broker_ca}: {error}") from None
    return Invite(
        swarm=swarm,
        coordinator=identity.peer_id,
        dht=(f"/p2p/{identity.peer_id}",),
        entrance=ends.announced_broker,
        broker=broker,
        token=_token(swarm, identity, folder, ledger),
        broker_ca=ca,
        standbys=tuple(AppointedStandby.appoint(StandbyCard.decode(card), swarm, identity) for card in options.cards),
    )


def keep_invite(folder: Path, invite: Invite) -> None:
    """Keep in the state folder the invite that is handed out; its token is that of the next start, too."""
    write_atomically(folder / _FILE, invite.encode() + "\n", private=True)


def _token(swarm: str, identity: Identity, folder: Path, ledger: LedgerFile) -> EntryToken:
    """Return the token of the last start as long as that counts, else a new one."""
    with contextlib.suppress(UserError):
        token = Invite.decode(f"@{folder / _FILE}").token
        known, me = ledger.ledger, identity.peer_id
        gone = token.id in known.revoked or known.is_banned("", token.id) or len(known.users(token.id)) >= token.uses
        if not gone and token.by == me and token.expires > time.time() + DAY_SECONDS:
            return token
    now = time.time()
    expires = int(now + FIRST_INVITE_DAYS * DAY_SECONDS)
    token = EntryToken.issue(identity, swarm, FIRST_INVITE_USES, expires)
    ledger.append(Invited(token=token.id, uses=token.uses, expires=expires, name="printed by serve", at=now))
    ledger.take_up()
    return token
