"""Replacement of a coordinator's key by a new one, in its state folder.

The new key lies beside the old one until everything else is written; then it takes its place, and the old one is gone.
Whatever is cut off is finished at the next start.
"""

import os
import time
from pathlib import Path

from dtfm_coordinator.membership.ledger_file import LedgerFile
from dtfm_coordinator.membership.membership_ledger import Trusted
from dtfm_coordinator.plan_change.plan_record import PlanRecord
from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.credential import authority_certificate, read_credential
from dtfm_protocol.identity.key_succession import MOST_SUCCESSIONS, Succession
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.process.state_dir import sync_folder, write_atomically

KEY, NEXT_KEY = "key", "key.next"
AUTHORITY = "authority.crt"
"""File of the certificate of a coordinator whose key was replaced: it has the successions. DER."""


def own_certificate(folder: Path, identity: Identity) -> bytes:
    """Return the certificate of the coordinator with this state folder, whose key is `identity`, DER.

    Raises:
        UserError: the file that has its successions cannot be read.
    """
    return authority_certificate(identity, _successions(folder, identity.peer_id))


def is_due(folder: Path) -> bool:
    """Whether the owner has asked for a new key, which has not taken its place yet."""
    return (folder / NEXT_KEY).exists()


def ask(folder: Path) -> Identity:
    """Make the new key, which takes the place of the old one with `replace_key`, and return it."""
    return Identity.load_or_create(folder / NEXT_KEY)


def replace_key(folder: Path, swarm: str) -> Identity:
    """Replace the key of a coordinator, which calls for no more plans with the old one; return the new one.

    Raises:
        UserError: something cannot be read or written; then the old key is there still.
    """
    old, new = Identity.load_or_create(folder / KEY), ask(folder)
    epoch, before = PlanRecord.of(folder).epoch, _successions(folder, old.peer_id)
    latest = Succession.made(old, swarm, new.peer_id, int(time.time()), max(epoch.called, epoch.in_force))
    LedgerFile(folder).append(Trusted(certificate=authority_certificate(old, before).hex()))
    chain = (*before, latest)[-MOST_SUCCESSIONS:]
    write_atomically(folder / AUTHORITY, authority_certificate(new, chain), lasting=True)
    try:
        os.replace(folder / NEXT_KEY, folder / KEY)
        sync_folder(folder)
    except OSError as error:
        raise UserError(f"cannot replace {folder / KEY}: {error.strerror}") from None
    return new


def _successions(folder: Path, peer: str) -> tuple[Succession, ...]:
    """Return the successions that have led to `peer`; none, where it is the first key."""
    try:
        found = read_credential((folder / AUTHORITY).read_bytes()).successions
    except FileNotFoundError:
        return ()
    except (OSError, Refused) as error:
        raise UserError(f"cannot use the certificate {folder / AUTHORITY}: {error}") from None
    names = [one.after for one in found]
    return found[: names.index(peer) + 1] if peer in names else ()
