"""Membership for tests: coordinators and members of a swarm, each with the admission of a peer that runs."""

import time
from collections.abc import Callable, Collection

from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.credential import authority_certificate, issue_credential
from dtfm_protocol.identity.keys import Identity

SWARM = "0123456789abcdef"
TOKEN = "00112233aabbccdd"
DAY = 86_400.0


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
