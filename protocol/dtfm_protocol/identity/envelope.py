"""The signed envelope in which every control message and DHT record travels."""

import base64
import json
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.schema import Schema

S = TypeVar("S", bound=Schema)

LIMIT = 4 << 20
"""Bytes of the largest envelope that is looked at."""


class _Outer(Schema):
    sender: Annotated[str, Field(max_length=128)]
    payload: str
    signature: Annotated[str, Field(max_length=128)]


class _Payload(Schema):
    swarm: str
    kind: str
    at: float
    body: dict[str, Any]


class Letter(Schema):
    """An envelope that verified: the sender's peer id, kind and body, and the Unix seconds of the sender's clock."""

    sender: str
    kind: str
    at: float
    body: dict[str, Any]


class Post:
    """A peer's means to seal and open the envelopes of one swarm."""

    def __init__(self, swarm: str, identity: Identity, clock: Callable[[], float] = time.time) -> None:
        self._swarm = swarm
        self._identity = identity
        self._clock = clock

    @property
    def peer_id(self) -> str:
        """The peer whose envelopes `seal` makes."""
        return self._identity.peer_id

    def seal(self, kind: str, body: Schema) -> bytes:
        """Sign `body` as a message of `kind`, and return the envelope's bytes."""
        payload = _Payload(swarm=self._swarm, kind=kind, at=self._clock(), body=body.model_dump(mode="json"))
        text = payload.model_dump_json()
        signature = base64.b64encode(self._identity.sign(_context(text))).decode()
        return _Outer(sender=self.peer_id, payload=text, signature=signature).model_dump_json().encode()

    def open(self, data: bytes, kind: str) -> Letter:
        """Open an envelope, after a check of its size, form, signature, swarm and kind.

        Raises:
            Refused: the envelope is too large, malformed or of another swarm or kind, or its signature is wrong.
        """
        if len(data) > LIMIT:
            raise Refused(f"{len(data)} bytes is more than an envelope may have ({LIMIT})")
        try:
            outer = _Outer.model_validate_json(data)
            signature = base64.b64decode(outer.signature, validate=True)
        except ValueError:  # pydantic's and binascii's errors, and base64's of what is not ASCII
            raise Refused("not an envelope") from None
        verify(outer.sender, _context(outer.payload), signature)
        try:
            payload = _Payload.model_validate_json(outer.payload)
        except ValidationError:
            raise Refused("the payload is not a message") from None
        if payload.swarm != self._swarm:
            raise Refused("a message of another swarm")
        if payload.kind != kind:
            raise Refused(f"a message of kind {payload.kind[:40]!r} where {kind!r} belongs")
        return Letter(sender=outer.sender, kind=kind, at=payload.at, body=payload.body)


def read_body(letter: Letter, schema: type[S]) -> S:
    """Read the letter's body as `schema`.

    Raises:
        Refused: the body does not fit the schema.
    """
    try:
        return schema.model_validate(letter.body)
    except ValidationError as error:
        raise Refused(f"{letter.kind}: {error.errors()[0]['msg']}") from None


def _context(text: str) -> bytes:
    """Return the bytes that are signed: the text under a prefix that no other use of the key shares."""
    return b"dtfm/1/envelope:" + text.encode()


def signable(value: dict[str, Any]) -> bytes:
    """Return a JSON value in one canonical form, for signatures that lie beside their fields (a published plan's)."""
    return b"dtfm/1/document:" + json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
