"""The signer of a peer's words in one swarm: its identity, and the swarm's id, which is part of all that is signed."""

from dataclasses import dataclass

from dtfm_protocol.identity.keys import Identity, verify


@dataclass(frozen=True)
class Signer:
    """A peer's means to sign what it says in one swarm, and to check what others have signed."""

    identity: Identity
    swarm: str
    """Id of the swarm."""

    def sign(self, statement: bytes) -> bytes:
        """Sign a statement: an Ed25519 signature of 64 bytes."""
        return self.identity.sign(statement)

    def check(self, peer: str, statement: bytes, signature: bytes) -> None:
        """Check that `peer` has signed `statement`.

        Raises:
            Refused: the signature is not that of `peer`.
        """
        verify(peer, statement, signature)
