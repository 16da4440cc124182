"""Signed votes on states: the word of a replica on all tensors of its stage, after a step whose state is kept."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Self

from pydantic import Field

from dtfm_protocol.bounds import PeerName, Signature
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import SignatureCheck, short, verify
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.mark import LayerRange, Mark, StateDigest

MOST_VOTES = 16
"""Votes on one part of a state in one message."""


def digest_of_state(hashes: Mapping[str, str]) -> str:
    """Return the SHA-256 over keys and hashes of a stage's tensors, weights and moments, in order of key."""
    return sha256(json.dumps(sorted(hashes.items()), separators=(",", ":")).encode()).hexdigest()


class StateVote(StateDigest):
    """A replica's signed word on its stage's part of a state.

    Replicas hold the same bits, so their votes on one part differ only where somebody lies or a machine has failed. A
    peer that signs two digests of one part has proven by itself that it lies.
    """

    peer: PeerName
    signature: Signature

    @classmethod
    def made(cls, signer: Signer, mark: Mark, layers: LayerRange, digest: str) -> Self:
        """Sign `digest`, of the stage of `layers` in the state `mark`."""
        signature = signer.sign(_statement(signer.swarm, mark, layers, digest)).hex()
        return cls(peer=signer.identity.peer_id, mark=mark, layers=layers, digest=digest, signature=signature)

    def check(self, swarm: str, check: SignatureCheck = verify) -> None:
        """Check that the peer has signed it for `swarm`.

        Raises:
            Refused: it has not.
        """
        check(self.peer, _statement(swarm, self.mark, self.layers, self.digest), bytes.fromhex(self.signature))

    @property
    def subject(self) -> tuple[Mark, LayerRange]:
        """The part of a state that is voted on."""
        return self.mark, self.layers


Votes = Annotated[tuple[StateVote, ...], Field(max_length=MOST_VOTES)]
"""Votes on one part of a state."""


def vote_of(votes: Votes, peer: str, mark: Mark, layers: LayerRange, swarm: str) -> StateVote:
    """Return the vote of `peer` on a part of a state among those that came from it, after a check of its signature.

    Raises:
        Refused: there is none, or it is not signed by `peer`.
    """
    for vote in votes:
        if vote.peer == peer and vote.subject == (mark, layers):
            vote.check(swarm)
            return vote
    raise Refused(f"{short(peer)} gives a part of {mark} and no vote of its own on it")


def _statement(swarm: str, mark: Mark, layers: LayerRange, digest: str) -> bytes:
    """Return the bytes that are signed."""
    low, high = layers
    return f"dtfm/1/state:{swarm}:{mark.step}:{mark.plan}:{low}:{high}:{digest}".encode()
