"""Membership for tests: coordinators, members and strangers of a swarm, each with the admission of a peer that runs."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import authority_certificate, issue_credential
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity

SWARM = "0123456789abcdef"
OTHER_SWARM = "f" * 16
TOKEN = "00112233aabbccdd"
OTHER_TOKEN = "ddccbbaa33221100"
DAY = 86_400.0
OWNER = Identity.generate()
"""A coordinator, for tests that need no other."""


def coordinator_of(
    coordinator: Identity,
    swarm: str = SWARM,
    *,
    coordinators: Collection[str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Admission:
    """Make the admission of a coordinator itself.

    Args:
        coordinator: the coordinator's key.
        swarm: the swarm's id.
        coordinators: peer ids whose signatures count; None: the coordinator alone.
        clock: gives Unix seconds.
    """
    authority = authority_certificate(coordinator)
    trusted = [coordinator.peer_id] if coordinators is None else coordinators
    return Admission(swarm, trusted, authority, [authority], clock)


def member_of(
    coordinator: Identity,
    swarm: str = SWARM,
    *,
    identity: Identity | None = None,
    token: str = TOKEN,
    expires: float | None = None,
    clock: Callable[[], float] = time.time,
) -> tuple[Identity, Admission]:
    """Make a member: its key, and its admission with the credential that `coordinator` has signed.

    Args:
        coordinator: the coordinator's key.
        swarm: the swarm's id.
        identity: the member's key; None: a new one.
        token: id of the token with which it has entered.
        expires: Unix seconds at which its credential expires; None: a day from now.
        clock: gives the member's Unix seconds.
    """
    member = identity or Identity.generate()
    until = time.time() + DAY if expires is None else expires
    certificate = issue_credential(coordinator, swarm, member.peer_id, token, until)
    return member, Admission(swarm, [coordinator.peer_id], certificate, [authority_certificate(coordinator)], clock)


def invite_of(coordinator: Identity = OWNER, swarm: str = SWARM, *, host: str = "127.0.0.1") -> Invite:
    """Make an invite for one node, whose coordinator is at the ports that `serve` takes."""
    return Invite(
        swarm=swarm,
        coordinator=coordinator.peer_id,
        dht=(f"/ip4/{host}/tcp/7701/p2p/{coordinator.peer_id}",),
        entrance=f"{host}:7700",
        token=EntryToken.issue(coordinator, swarm, 1, int(time.time() + DAY)),
    )


@dataclass(frozen=True)
class Stranger:
    """Somebody who is no member of OWNER's swarm, and has what it shows."""

    identity: Identity
    admission: Admission
    """What it shows, and whom it would believe: the swarm's members."""
    bans: tuple[Ban, ...] = ()
    """What members know."""


def stranger(kind: str) -> Stranger:
    """Make a stranger of one of the STRANGERS' kinds."""
    identity, member = Identity.generate(), Identity.generate()
    peer, until = identity.peer_id, time.time() + DAY
    other, bans = Identity.generate(), tuple[Ban, ...]()
    match kind:
        case "nothing":
            shown = b""
        case "rubbish":
            shown = bytes(300)
        case "its own authority":
            shown = authority_certificate(identity)
        case "another coordinator's":
            shown = issue_credential(other, SWARM, peer, TOKEN, until)
        case "another swarm's":
            shown = issue_credential(OWNER, OTHER_SWARM, peer, TOKEN, until)
        case "expired":
            shown = issue_credential(OWNER, SWARM, peer, TOKEN, time.time() - 1)
        case "banned":
            shown = issue_credential(OWNER, SWARM, peer, TOKEN, until)
            bans = (Ban.of(OWNER, SWARM, f"peer:{peer}"),)
        case "with a banned token":
            shown = issue_credential(OWNER, SWARM, peer, OTHER_TOKEN, until)
            bans = (Ban.of(OWNER, SWARM, f"token:{OTHER_TOKEN}"),)
        case "another member's":
            shown = issue_credential(OWNER, SWARM, member.peer_id, TOKEN, until)
        case "the coordinator's":
            shown = authority_certificate(OWNER)
        case _:
            raise ValueError(kind)
    admission = Admission(SWARM, [OWNER.peer_id], shown, [authority_certificate(OWNER)])
    return Stranger(identity, admission, bans)


WITH_THEIR_OWN_KEY = (
    "its own authority",
    "another coordinator's",
    "another swarm's",
    "expired",
    "banned",
    "with a banned token",
)
"""Kinds of strangers that show a certificate of their own key."""
STRANGERS = ("nothing", "rubbish", *WITH_THEIR_OWN_KEY, "another member's", "the coordinator's")
