"""Votes and commits as frames carry them: a signature of 64 bytes, then the message as JSON.

Nothing is parsed before the signature of the stream's peer is checked, so what is kept of a frame proves who said it.
"""

from typing import Literal, TypeVar

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.ballot import Ballot, Commit, Vote, read_ballot
from dtfm_protocol.plan.signed_commit import SIGNATURE_BYTES, SignedCommit, statement
from dtfm_protocol.wire.stream import Bytes

M = TypeVar("M", Vote, Commit)
_KINDS: dict[type[Vote] | type[Commit], Literal["vote", "commit"]] = {Vote: "vote", Commit: "commit"}


class SignedBallots:
    """Signing and opening of the ballots of one plan."""

    def __init__(self, signer: Signer, plan: int) -> None:
        self._signer, self._plan = signer, plan

    def signed(self, ballot: Ballot, step: int, message: Vote | Commit) -> bytes:
        """Return the frame's payload of this peer's own vote or commit."""
        text = message.model_dump_json().encode()
        return self._signer.sign(self._statement(type(message), ballot, step, text)) + text

    def opened(self, sender: str, ballot: Ballot, step: int, frame: Bytes, schema: type[M]) -> M:
        """Return the vote or commit in a frame's payload.

        Raises:
            Refused: `sender` has not signed it, or it is no valid message of `schema`.
        """
        view = memoryview(frame)
        if len(view) < SIGNATURE_BYTES:
            raise Refused(f"a {_KINDS[schema]} without a signature")
        signature, text = bytes(view[:SIGNATURE_BYTES]), view[SIGNATURE_BYTES:]
        self._signer.check(sender, self._statement(schema, ballot, step, text), signature)
        return read_ballot(text, schema)

    def commit_of(self, step: int, frame: Bytes) -> SignedCommit:
        """Return the commit on a step in a frame that has been opened, with its signature, for others to check."""
        view = memoryview(frame)
        text = bytes(view[SIGNATURE_BYTES:]).decode()
        return SignedCommit(plan=self._plan, step=step, text=text, signature=view[:SIGNATURE_BYTES].hex())

    def _statement(
        self, schema: type[Vote] | type[Commit], ballot: Ballot, step: int, text: bytes | memoryview
    ) -> bytes:
        return statement(_KINDS[schema], self._signer.swarm, self._plan, ballot, step, text)


def text_of(frame: Bytes) -> memoryview:
    """Return the text of a signed vote or commit."""
    return memoryview(frame)[SIGNATURE_BYTES:]
