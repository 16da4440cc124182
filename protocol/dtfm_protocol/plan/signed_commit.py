"""Signed votes and commits: who said what of a step, so that anybody can check it later.

Each signature is over the swarm, the plan's version, the step, and the text as it was sent.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field

from dtfm_protocol.bounds import Signature, Step, Version
from dtfm_protocol.identity.keys import Identity, SignatureCheck, verify
from dtfm_protocol.plan.ballot import Ballot, Commit, read_ballot
from dtfm_protocol.schema import Schema
from dtfm_protocol.wire.stream import Bytes

COMMIT_LIMIT = 2048
"""Characters of the largest commit."""
SIGNATURE_BYTES = 64
"""Length of an Ed25519 signature."""


class SignedCommit(Schema):
    """The commit that made a step final, with the signature of the plan's arbiter."""

    plan: Version
    step: Step
    text: Annotated[str, Field(max_length=COMMIT_LIMIT)]
    """The `Commit` as JSON, as it was signed."""
    signature: Signature

    @classmethod
    def made(cls, identity: Identity, swarm: str, plan: int, step: int, commit: Commit) -> Self:
        """Sign `commit`, as the arbiter of plan `plan`."""
        text = commit.model_dump_json()
        signature = identity.sign(statement("commit", swarm, plan, Ballot.STEP, step, text.encode()))
        return cls(plan=plan, step=step, text=text, signature=signature.hex())

    def opened(self, arbiter: str, swarm: str, check: SignatureCheck = verify) -> Commit:
        """Return the commit, after a check that `arbiter` has signed it.

        Raises:
            Refused: it has not, or it is no commit.
        """
        text = self.text.encode()
        signed = statement("commit", swarm, self.plan, Ballot.STEP, self.step, text)
        check(arbiter, signed, bytes.fromhex(self.signature))
        return read_ballot(text, Commit)

    @property
    def digest(self) -> str:
        """The digest by which the votes on the next step name this commit."""
        return digest_of(self.text.encode())


def digest_of(text: bytes | memoryview) -> str:
    """Return the digest of a commit's text, by which the votes that follow name it."""
    return hashlib.sha256(text).hexdigest()


def is_one_state(one: SignedCommit | None, other: SignedCommit | None) -> bool:
    """Whether two commits of one mark have led to the same state, as far as both are known: an arbiter that lies may
    have signed two, with unlike norms."""
    return one is None or other is None or one.digest == other.digest


def root_of_votes(votes: Iterable[Bytes]) -> str:
    """Return the root over votes, each its signature and its text, in the plan's order of peers."""
    root = hashlib.sha256()
    for vote in votes:
        root.update(hashlib.sha256(vote).digest())
    return root.hexdigest()


def statement(
    kind: Literal["vote", "commit"], swarm: str, plan: int, ballot: Ballot, step: int, text: bytes | memoryview
) -> bytes:
    """Return the bytes that the sender of a vote or commit signs."""
    return statement_of_hash(kind, swarm, plan, ballot, step, hashlib.sha256(text).digest())


def statement_of_hash(
    kind: Literal["vote", "commit"], swarm: str, plan: int, ballot: Ballot, step: int, sha256: bytes
) -> bytes:
    """Return the same, where only the SHA-256 of the text is known."""
    return f"dtfm/1/{kind}:{swarm}:{plan}:{int(ballot)}:{step}:".encode() + sha256
