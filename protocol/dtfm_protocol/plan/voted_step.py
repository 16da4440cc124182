"""Proof that all peers of a plan have voted on a step: the signatures of their votes, without the votes.

The arbiter alone has all votes. Where it holds the whole model, too, and nobody else is left who has come to the step,
its own word would be all that there is; with this it need not be believed.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Self

from pydantic import Field

from dtfm_protocol.bounds import Step, Version
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import SignatureCheck, verify
from dtfm_protocol.plan.ballot import Ballot
from dtfm_protocol.plan.signed_commit import SIGNATURE_BYTES, statement_of_hash
from dtfm_protocol.schema import Message
from dtfm_protocol.wire.stream import Bytes

VOTES_LIMIT = 64
"""Votes of one proof. Of more peers than that hardly all but the arbiter are lost at once."""
_HASH_BYTES = hashlib.sha256().digest_size
_SignedHash = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{2 * (SIGNATURE_BYTES + _HASH_BYTES)}}}$")]


class VotedStep(Message):
    """The signatures of all votes on a step."""

    plan: Version
    step: Step
    votes: Annotated[tuple[_SignedHash, ...], Field(max_length=VOTES_LIMIT)]
    """Of each vote, in the plan's order of peers, its signature and the SHA-256 of its text, in hexadecimal digits."""

    @classmethod
    def of(cls, plan: int, step: int, votes: Iterable[Bytes]) -> Self:
        """Return the proof of votes on a step, each its signature and its text, in the plan's order of peers."""
        return cls(plan=plan, step=step, votes=tuple(map(_signed_hash, votes)))

    def check(self, swarm: str, peers: Sequence[str], check: SignatureCheck = verify) -> None:
        """Check that each of `peers`, all of the plan in its order, has voted on the step.

        Raises:
            Refused: one has not.
        """
        if len(self.votes) != len(peers):
            raise Refused(f"{len(self.votes)} votes of {len(peers)} peers")
        for peer, vote in zip(peers, map(bytes.fromhex, self.votes), strict=True):
            signature, sha256 = vote[:SIGNATURE_BYTES], vote[SIGNATURE_BYTES:]
            check(peer, statement_of_hash("vote", swarm, self.plan, Ballot.STEP, self.step, sha256), signature)


def _signed_hash(vote: Bytes) -> str:
    view = memoryview(vote)
    return view[:SIGNATURE_BYTES].hex() + hashlib.sha256(view[SIGNATURE_BYTES:]).hexdigest()
