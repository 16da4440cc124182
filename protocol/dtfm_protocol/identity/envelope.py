"""The signed envelope in which every control message and DHT record travels."""

import base64
import json
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from dtfm_protocol.bounds import Count, Label, PeerName, printable
from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.identity.message_counter import MessageCounter
from dtfm_protocol.schema import Message, Schema, first_fault

S = TypeVar("S", bound=Schema)

LIMIT = 4 << 20
"""Bytes of the largest envelope that is looked at."""


class _Outer(Message):
    sender: PeerName
    payload: str
    signature: Annotated[str, Field(max_length=128)]


class _Payload(Message):
    swarm: Label
    kind: Label
    at: Annotated[float, Field(ge=-1e12, le=1e12)]
    counter: Count
    will: Count = 0
    body: dict[str, Any]


class Letter(Schema):
    """An envelope that verified, and what its sender signed."""

    sender: str
    kind: str
    at: float
    """Unix seconds of the sender's clock."""
    counter: int
    """Number of the message among all that its sender has signed; it grows with each."""
    will: int
    """Number of the last will that the sender has left with the broker for this connection; 0: it has left none."""
    body: dict[str, Any]


class Post:
    """A peer's means to seal and open the envelopes of one swarm.

    The signature is over the text of the payload as it was sent, so that a later version may put more into it.
    """

    def __init__(
        self,
        swarm: str,
        identity: Identity,
        clock: Callable[[], float] = time.time,
        counter: MessageCounter | None = None,
    ) -> None:
        """Take what is needed.

        Args:
            swarm: the swarm's id; messages of another one are refused.
            clock: Unix seconds.
            counter: numbers what is sealed; None: it goes by the machine's clock alone, for an identity that is new.
        """
        self._swarm = swarm
        self._identity = identity
        self._clock = clock
        self._counter = counter or MessageCounter()

    @property
    def peer_id(self) -> str:
        """The peer whose envelopes `seal` makes."""
        return self._identity.peer_id

    def number(self) -> int:
        """Return a new number for a message that `seal` is to have."""
        return self._counter.take()

    def seal(self, kind: str, body: Schema, *, counter: int | None = None, will: int = 0) -> bytes:
        """Sign `body` as a message of `kind`, and return the envelope's bytes.

        Args:
            counter: number of the message, from `number`; None: the next one.
            will: number of the last will of the connection over which it goes.
        """
        payload = _Payload(
            swarm=self._swarm,
            kind=kind,
            at=self._clock(),
            counter=self.number() if counter is None else counter,
            will=will,
            body=body.model_dump(mode="json"),
        )
        text = payload.model_dump_json()
        signature = base64.b64encode(self._identity.sign(_context(text))).decode()
        return _Outer(sender=self.peer_id, payload=text, signature=signature).model_dump_json().encode()

    def open(self, data: bytes, kind: str, limit: int = LIMIT) -> Letter:
        """Open an envelope of at most `limit` bytes, after a check of its size, form, signature, swarm and kind.

        Raises:
            Refused: the envelope is too large, malformed or of another swarm or kind, or its signature is wrong.
        """
        if len(data) > limit:
            raise Refused(f"{len(data)} bytes is more than such an envelope may have ({limit})", Cause.SIZE)
        try:
            outer = _Outer.model_validate_json(data)
            signature = base64.b64decode(outer.signature, validate=True)
        except ValueError:  # pydantic's and binascii's errors, and base64's of what is not ASCII
            raise Refused("not an envelope", Cause.FORM) from None
        verify(outer.sender, _context(outer.payload), signature)
        try:
            payload = _Payload.model_validate_json(outer.payload)
        except ValidationError:
            raise Refused("the payload is not a message", Cause.FORM) from None
        if payload.swarm != self._swarm:
            raise Refused("a message of another swarm", Cause.SWARM)
        if outer.sender == self.peer_id:  # a disk that was restored, and with it the clock, would have numbers repeat
            self._counter.passed(payload.counter)
        if payload.kind != kind:
            raise Refused(f"a message of kind {payload.kind[:40]!r} where {kind!r} belongs", Cause.KIND)
        return Letter(
            sender=outer.sender,
            kind=kind,
            at=payload.at,
            counter=payload.counter,
            will=payload.will,
            body=payload.body,
        )


def read_body(letter: Letter, schema: type[S]) -> S:
    """Read the letter's body as `schema`.

    Raises:
        Refused: the body does not fit the schema.
    """
    try:
        return schema.model_validate(letter.body)
    except ValidationError as error:
        raise Refused(f"{letter.kind}: {printable(first_fault(error))[:400]}") from None


def _context(text: str) -> bytes:
    """Return the bytes that are signed: the text under a prefix that no other use of the key shares."""
    return b"dtfm/1/envelope:" + text.encode()


def signable(value: dict[str, Any]) -> bytes:
    """Return a JSON value in one canonical form, for signatures that lie beside their fields (a published plan's)."""
    return b"dtfm/1/document:" + json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
