"""A ban: a coordinator's signed word that a peer, or all who entered with a token, are members no more."""

from typing import Annotated, Self

from pydantic import Field

from dtfm_protocol.bounds import PeerName
from dtfm_protocol.identity.envelope import signable
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.schema import Schema

BanSubject = Annotated[str, Field(pattern=r"^(peer|token|entry):[A-Za-z0-9]{1,120}$")]
"""Whom a ban is about."""


class Ban(Schema):
    """A ban of one subject, which holds as long as no ruling says otherwise. Bans are only ever added, so that sets of
    them can be merged in any order."""

    subject: BanSubject
    """`peer:PEER ID`, `token:TOKEN ID`, or `entry:TOKEN ID and PEER ID`: that peer as far as it entered with that
    token; with another one it may enter."""
    by: PeerName
    """Coordinator that signed it."""
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @classmethod
    def of(cls, coordinator: Identity, swarm: str, subject: str) -> Self:
        """Ban `subject` from `swarm`."""
        return cls(subject=subject, by=coordinator.peer_id, signature=coordinator.sign(_signable(swarm, subject)).hex())

    def verify(self, swarm: str) -> None:
        """Check that the coordinator that the ban names signed it for `swarm`.

        Raises:
            Refused: it did not.
        """
        verify(self.by, _signable(swarm, self.subject), bytes.fromhex(self.signature))


def subjects_of(peer: str, token: str) -> tuple[str, str, str]:
    """Return the subjects of bans that each keep `peer` out, which has entered with `token`."""
    return f"peer:{peer}", f"token:{token}", f"entry:{token}{peer}"


def _signable(swarm: str, subject: str) -> bytes:
    return signable({"ban from": swarm, "subject": subject})
