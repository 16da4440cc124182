"""The card with which a second coordinator introduces itself to the owner of a swarm, as one line of text."""

import base64
import binascii
import hashlib
import re
from typing import Annotated, Self

from pydantic import Field, ValidationError

from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.credential import CERTIFICATE_LIMIT
from dtfm_protocol.identity.envelope import signable
from dtfm_protocol.identity.keys import Identity, verify
from dtfm_protocol.schema import Schema

_PORT = r"(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5])"
HostAndPort = Annotated[str, Field(pattern=rf"^[^\s/]{{1,253}}:{_PORT}$")]
"""HOST:PORT of a TCP service."""
_FORM = re.compile(r"^dtfmcard2\.(?P<body>[A-Za-z0-9_-]+)\.(?P<checksum>[0-9a-f]{8})$")


class StandbyCard(Schema):
    """A second coordinator's peer id and certificate, and the addresses of its entrance, broker and DHT peer."""

    peer: Annotated[str, Field(max_length=128)]
    certificate: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$", max_length=2 * CERTIFICATE_LIMIT)]
    """Certificate with which it signs members' credentials while it leads: X.509 in DER, in hexadecimal digits."""
    entrance: HostAndPort
    """HOST:PORT at which it enrols newcomers while it leads; its embedded broker is there, too."""
    broker: Annotated[str, Field(pattern=r"^mqtts?://")] | None = None
    """Address of its MQTT broker; None: the embedded one at the entrance."""
    dht: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(min_length=1, max_length=8)]
    """libp2p multiaddresses to enter the DHT by, each ending in /p2p/PEER."""

    def encode(self) -> str:
        """Encode the card as one line: `dtfmcard2.<base64url>.<checksum>`."""
        body = base64.urlsafe_b64encode(self.model_dump_json().encode()).decode().rstrip("=")
        return f"dtfmcard2.{body}.{_checksum(body)}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Parse a card; blanks and line breaks from copying are dropped.

        Raises:
            UserError: the text is not a card, or is damaged.
        """
        form = _FORM.match(re.sub(r"[\s\"'`<>]", "", text))
        try:
            if form is None or _checksum(form["body"]) != form["checksum"]:
                raise ValueError
            padded = form["body"] + "=" * (-len(form["body"]) % 4)
            return cls.model_validate_json(base64.urlsafe_b64decode(padded))
        except (ValueError, binascii.Error, ValidationError):
            raise UserError("the text is not a card: copy the whole line that `dtfm-coordinator card` wrote") from None


class AppointedStandby(Schema):
    """A coordinator that may take over, with the first coordinator's signature on its card."""

    card: StandbyCard
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @classmethod
    def appoint(cls, card: StandbyCard, swarm: str, first: Identity) -> Self:
        """Sign a card of a coordinator that may take over `swarm` from `first`."""
        return cls(card=card, signature=first.sign(_signable(card, swarm)).hex())

    def verify(self, swarm: str, first: str) -> None:
        """Check that the first coordinator, of peer id `first`, signed the card.

        Raises:
            Refused: the signature is not that of `first`.
        """
        verify(first, _signable(self.card, swarm), bytes.fromhex(self.signature))


def _signable(card: StandbyCard, swarm: str) -> bytes:
    return signable({"swarm": swarm, "standby": card.model_dump(mode="json")})


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:8]
