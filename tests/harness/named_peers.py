"""Peers with keys that tests call by plain names: the same name always has the same key."""

import hashlib
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.mark import LayerRange, Mark
from dtfm_protocol.plan.state_vote import StateVote
from tests.harness.membership import SWARM

_known: dict[str, Identity] = {}
"""Identities that were asked for, by peer id."""


@cache
def identity_of(name: str) -> Identity:
    """Return the identity of the peer that goes by `name`, which may be its peer id once that was asked for."""
    if name in _known:
        return _known[name]
    identity = Identity(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))
    return _known.setdefault(identity.peer_id, identity)


def id_of(name: str) -> str:
    """Return the peer id of the peer that goes by `name`."""
    return identity_of(name).peer_id


class NamedSigner(Signer):
    """Signer among peers that call each other by plain names."""

    def check(self, peer: str, statement: bytes, signature: bytes) -> None:
        verify(peer if peer.startswith("12D3") else id_of(peer), statement, signature)


def signer_of(name: str, swarm: str = SWARM) -> Signer:
    """Return the signer of the peer that goes by `name`."""
    return NamedSigner(identity_of(name), swarm)


def vote_on(name: str, mark: Mark, layers: LayerRange, digest: str, swarm: str = SWARM) -> StateVote:
    """Return a vote of the peer that goes by `name` on a part of a state."""
    return StateVote.made(signer_of(name, swarm), mark, layers, digest)
