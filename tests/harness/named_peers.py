"""Peers with keys that tests call by plain names: the same name always has the same key."""

import hashlib
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.mark import LayerRange, Mark
from dtfm_protocol.plan.state_vote import StateVote
from tests.harness.membership import SWARM


@cache
def signer_of(name: str, swarm: str = SWARM) -> Signer:
    """Return the signer of the peer that goes by `name`."""
    return Signer(Identity(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())), swarm)


def id_of(name: str) -> str:
    """Return the peer id of the peer that goes by `name`."""
    return signer_of(name).identity.peer_id


def vote_on(name: str, mark: Mark, layers: LayerRange, digest: str, swarm: str = SWARM) -> StateVote:
    """Return a vote of the peer that goes by `name` on a part of a state."""
    return StateVote.made(signer_of(name, swarm), mark, layers, digest)
