"""Enrolment: what a newcomer and a coordinator say to each other until the newcomer has a credential.

It runs over TLS at the coordinator's entrance. The coordinator's certificate carries the key that the invite names; the
newcomer shows none yet, and signs the coordinator's random challenge instead, so that nobody can hand a request on.
"""

import asyncio
import secrets
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from dtfm_protocol.bounds import PeerName, ProductVersion, Text
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.credential import CERTIFICATE_LIMIT
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.schema import Message

S = TypeVar("S", bound=Message)

MESSAGE_LIMIT = 8 << 10
"""Bytes of the largest request; an answer may have more, for it carries bans."""
ANSWER_LIMIT = 4 << 20
GREETING = b"DTFM enrol 1\n"
"""First bytes that a newcomer sends at a coordinator's entrance."""
CHALLENGE_BYTES = 32

Certificate = Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=2 * CERTIFICATE_LIMIT)]
"""X.509 certificate in DER, in hexadecimal digits."""


class EnrolmentRequest(Message):
    """A newcomer's request for a credential."""

    peer: PeerName
    token: EntryToken
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
    """Of the challenge, by the newcomer's key."""
    version: ProductVersion = ""
    """Version of its program."""

    @classmethod
    def make(
        cls, identity: Identity, swarm: str, token: EntryToken, challenge: bytes, version: str = ""
    ) -> "EnrolmentRequest":
        """Answer a coordinator's challenge."""
        signature = identity.sign(_signable(swarm, token, challenge)).hex()
        return cls(peer=identity.peer_id, token=token, signature=signature, version=version)

    def verify(self, swarm: str, challenge: bytes) -> None:
        """Check that the newcomer holds the key of its peer id, and that the token is genuine.

        Raises:
            Refused: one of them is not so.
        """
        verify(self.peer, _signable(swarm, self.token, challenge), bytes.fromhex(self.signature))
        self.token.verify(swarm)


class EnrolmentAnswer(Message):
    """A coordinator's answer: a credential, or why there is none."""

    refused: Text = ""
    """Reason, for people; "" where there is a credential."""
    later: bool = False
    """Whether it may be given later: the one that answers does not lead yet."""
    certificate: Certificate | None = None
    """The newcomer's credential."""
    authorities: Annotated[tuple[Certificate, ...], Field(max_length=16)] = ()
    """Certificates of the coordinators that sign credentials, or have signed some that count."""
    bans: Annotated[tuple[Ban, ...], Field(max_length=4096)] = ()
    rulings: Annotated[tuple[BanRuling, ...], Field(max_length=1000)] = ()
    """On bans that hold no more, or again."""


def new_challenge() -> bytes:
    """Return a random challenge."""
    return secrets.token_bytes(CHALLENGE_BYTES)


def _signable(swarm: str, token: EntryToken, challenge: bytes) -> bytes:
    if len(challenge) != CHALLENGE_BYTES:
        raise Refused("a challenge of another length")
    return b"dtfm/1/enrolment:" + challenge + f"{swarm}/{token.id}".encode()


def send_enrolment(writer: asyncio.StreamWriter, message: Message) -> None:
    """Write a message behind its length, four bytes."""
    data = message.model_dump_json().encode()
    writer.write(len(data).to_bytes(4, "big") + data)


async def receive_enrolment(reader: asyncio.StreamReader, schema: type[S], limit: int) -> S:
    """Read what `send_enrolment` writes.

    Raises:
        Refused: it has more than `limit` bytes, or is no such message.
        EOFError: the connection ends early.
    """
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > limit:
        raise Refused(f"a message of {size} bytes, more than {limit}")
    data = await reader.readexactly(size)
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        raise Refused(f"{schema.__name__}: {error.errors()[0]['msg']}") from None
