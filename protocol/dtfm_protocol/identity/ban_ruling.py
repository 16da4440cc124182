"""A ban ruling: a coordinator's signed word that a ban holds no more, or holds again; the latest one counts."""

from typing import Annotated, Self

from pydantic import Field

from dtfm_protocol.bounds import MOST_UINT32, PeerName
from dtfm_protocol.identity.ban import BanSubject
from dtfm_protocol.identity.envelope import signable
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.schema import Schema


class BanRuling(Schema):
    """A ruling on the ban of one subject. Of two the later one counts, so that sets of them can be merged in any order,
    and an old one that is said again changes nothing."""

    subject: BanSubject
    """As of a ban."""
    holds: bool
    """Whether the ban holds from now on."""
    at: Annotated[int, Field(ge=1, le=MOST_UINT32)]
    """Unix seconds, and more than those of all rulings on the subject that its author knew."""
    by: PeerName
    """Coordinator that signed it."""
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @classmethod
    def of(cls, coordinator: Identity, swarm: str, subject: str, at: int, *, holds: bool) -> Self:
        """Rule on the ban of `subject` from `swarm`."""
        signature = coordinator.sign(_signable(swarm, subject, at, holds=holds)).hex()
        return cls(subject=subject, holds=holds, at=at, by=coordinator.peer_id, signature=signature)

    def verify(self, swarm: str) -> None:
        """Check that the coordinator that the ruling names signed it for `swarm`.

        Raises:
            Refused: it did not.
        """
        verify(self.by, _signable(swarm, self.subject, self.at, holds=self.holds), bytes.fromhex(self.signature))

    @property
    def order(self) -> tuple[int, bool]:
        """Order among the rulings on one subject; of two of the same second, that by which the ban holds counts."""
        return self.at, self.holds


def _signable(swarm: str, subject: str, at: int, *, holds: bool) -> bytes:
    return signable({"ruling on a ban from": swarm, "subject": subject, "at": at, "holds": holds})
