"""The entry token in an invite: a coordinator's signed word that whoever has the text may enter a swarm."""

import secrets
from typing import Annotated, Self

from pydantic import Field

from dtfm_protocol.bounds import PeerName
from dtfm_protocol.identity.envelope import signable
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.schema import Schema

MOST_USES = 10_000
TokenId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class EntryToken(Schema):
    """A right to enter, for `uses` nodes, until `expires`. Its signature is what nobody can guess."""

    id: TokenId
    """Random name of the token, under which it is listed and taken back."""
    uses: Annotated[int, Field(ge=1, le=MOST_USES)]
    """Nodes that may enter with it."""
    expires: Annotated[int, Field(ge=0, lt=1 << 40)]
    """Unix seconds after which nobody enters with it."""
    by: PeerName
    """Coordinator that signed it."""
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @classmethod
    def issue(cls, coordinator: Identity, swarm: str, uses: int, expires: int) -> Self:
        """Make a new token of `swarm`."""
        draft = cls(id=secrets.token_hex(8), uses=uses, expires=expires, by=coordinator.peer_id, signature="0" * 128)
        return draft.model_copy(update={"signature": coordinator.sign(draft._signable(swarm)).hex()})

    def verify(self, swarm: str) -> None:
        """Check that the coordinator that the token names signed it for `swarm`.

        Raises:
            Refused: it did not.
        """
        verify(self.by, self._signable(swarm), bytes.fromhex(self.signature))

    def _signable(self, swarm: str) -> bytes:
        return signable({"entry token of": swarm, **self.model_dump(mode="json", exclude={"signature"})})
