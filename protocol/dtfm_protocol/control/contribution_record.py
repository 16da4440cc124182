"""Contribution record: a coordinator's signed word on what one member has done for a run.

It says in itself who has signed it, and whose place that key has taken, so that whoever knows a coordinator's peer id
can check it without a swarm. The signature is over the text of the statement as it was sent: a later version may put
more into it.
"""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from dtfm_protocol.bounds import MOST_UINT32, Count, Label, Nickname, PeerName, Seconds, Signature, Step, Time
from dtfm_protocol.errors import Cause, Refused, UserError
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import Credential, read_credential
from dtfm_protocol.identity.enrolment import Certificate
from dtfm_protocol.identity.keys import Identity, short, verify
from dtfm_protocol.plan.mark import LayerRange
from dtfm_protocol.schema import Message, Schema

RECORD_LIMIT = 1 << 16
"""Bytes of the largest record that is looked at."""
STATEMENT_LIMIT = 1 << 15
"""Characters of the longest statement."""
MOST_RANGES = 1024
"""Runs of layers that a statement may name."""


class ContributionStatement(Message):
    """What a member has done for the state of a run that counts."""

    swarm: Label
    """Id of the swarm."""
    job: Label
    """The job's name."""
    peer: PeerName
    """Peer id of the member: whoever holds its key is the member."""
    name: Nickname = ""
    """What its person called the machine last; anybody may take any name."""
    tokens: Count
    """Tokens that went through its layers."""
    share: Annotated[float, Field(ge=0, le=1)]
    """Its part of all that was computed: its tokens times layers, of those of all members."""
    seconds: Seconds
    """Seconds of the steps in which it took part."""
    steps: Count
    """Number of those steps."""
    first_step: Step
    last_step: Step
    layers: Annotated[tuple[LayerRange, ...], Field(max_length=MOST_RANGES)]
    """Decoder layers `[first, end)` that it has computed, ascending, with gaps between them."""
    of_layers: Annotated[int, Field(ge=1, le=MOST_UINT32)]
    """Layers of the whole model."""
    at: Time
    """Unix seconds when this was said."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ends = [0, *(end for layers in self.layers for end in layers)]
        if any(later < earlier for earlier, later in pairwise(ends)) or ends[-1] > self.of_layers:
            raise ValueError("layers that the model has not, or out of order")
        if self.last_step < self.first_step:
            raise ValueError("its last step is before its first one")
        return self


class ContributionRecord(Schema):
    """A statement on a contribution, and who has signed it."""

    statement: Annotated[str, Field(max_length=STATEMENT_LIMIT)]
    """JSON text of a `ContributionStatement`, as it was signed."""
    signature: Signature
    certificate: Certificate
    """The coordinator's own certificate, which says whose places it has taken."""

    @classmethod
    def signed(cls, statement: ContributionStatement, coordinator: Identity, certificate: bytes) -> Self:
        """Have `coordinator` sign a statement; `certificate` is its own, DER."""
        text = statement.model_dump_json()
        return cls(statement=text, signature=coordinator.sign(_signable(text)).hex(), certificate=certificate.hex())

    @classmethod
    def parsed(cls, data: bytes) -> Self:
        """Return the record in the bytes of a file.

        Raises:
            UserError: they are none.
        """
        try:
            if len(data) > RECORD_LIMIT:
                raise ValueError
            return cls.model_validate_json(data)
        except ValueError:  # pydantic's is one
            raise UserError("that is no contribution record: ask for the file as `dtfm-node` keeps it") from None

    def opened(self) -> tuple[ContributionStatement, Credential]:
        """Return what it says, and whose key says so. Whether that key coordinates the swarm is for others to judge.

        Raises:
            Refused: it was not signed by the key that it names, or is no statement.
        """
        signer = read_credential(bytes.fromhex(self.certificate))
        if not signer.is_coordinators:
            raise Refused("a contribution record by a member", Cause.AUTHOR)
        verify(signer.peer, _signable(self.statement), bytes.fromhex(self.signature))
        try:
            return ContributionStatement.model_validate_json(self.statement), signer
        except ValidationError:
            raise Refused("a contribution record that states nothing of the kind", Cause.FORM) from None

    def said_by(self, coordinator: str) -> ContributionStatement:
        """Return what it says, if `coordinator` has signed it, or a key that has taken its place by its word.

        Raises:
            Refused: neither has.
        """
        statement, _ = self.opened()
        Coordinators(statement.swarm, [coordinator]).check_pin(bytes.fromhex(self.certificate), coordinator)
        return statement

    def said_of(self, peer: str, swarm: str, coordinators: Coordinators) -> ContributionStatement:
        """Return what a coordinator that leads now says of `peer` in `swarm`.

        Raises:
            Refused: it is about somebody else or another swarm, or by somebody who does not coordinate this one now.
        """
        statement, signer = self.opened()
        if signer.peer not in coordinators:
            raise Refused(f"a contribution record by {short(signer.peer)}, who does not coordinate this swarm")
        if statement.swarm != swarm:
            raise Refused("a contribution record of another swarm", Cause.SWARM)
        if statement.peer != peer:
            raise Refused(f"a contribution record of {short(statement.peer)}, not of {short(peer)}")
        return statement


def _signable(text: str) -> bytes:
    """Return the bytes that are signed: the text under a prefix that no other use of the key shares."""
    return b"dtfm/1/contribution:" + text.encode()
