"""The invite: all that a volunteer needs to find a swarm and to trust its coordinator, as one line of text."""

import base64
import binascii
import hashlib
import re
import zlib
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError

from dtfm_protocol.errors import Refused, UserError
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.standby_card import AppointedStandby, HostAndPort
from dtfm_protocol.schema import Schema

PROTOCOL_VERSION = 5
"""Version of the messages between members; an invite is for one version alone."""

_FORM = re.compile(r"^dtfm(?P<version>\d{1,4})\.(?P<body>[A-Za-z0-9_-]+)\.(?P<checksum>[0-9a-f]{8})$")
_COMMAND = "dtfm-nodejoin"
"""The command that takes an invite, without blanks: whoever copies a whole line has it before the invite."""
_LIMIT = 1 << 16


class Invite(Schema):
    """An invite: where a swarm is, how to enter it, and whose plans to believe."""

    swarm: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """The swarm's id, random, in hexadecimal digits."""
    coordinator: Annotated[str, Field(max_length=128)]
    """The coordinator's peer id, which carries its public key: plans that it did not sign are refused."""
    dht: tuple[str, ...] = Field(min_length=1)
    """libp2p multiaddresses to enter the DHT by, each ending in /p2p/PEER."""
    entrance: HostAndPort
    """HOST:PORT at which the coordinator enrols newcomers; its embedded broker is there, too."""
    broker: Annotated[str, Field(pattern=r"^mqtts?://")] | None = None
    """Address of the MQTT broker, with its account if it needs one; None: the embedded one at the entrance."""
    token: EntryToken
    """Right to enter."""
    broker_ca: str | None = None
    """PEM certificate that signs an mqtts broker's, where the system's own authorities do not."""
    standbys: Annotated[tuple[AppointedStandby, ...], Field(max_length=8)] = ()
    """Coordinators that take over when the first one is gone, in this order."""

    @property
    def coordinators(self) -> tuple[str, ...]:
        """The peers whose plans to believe: the first coordinator, and those that it has signed."""
        return (self.coordinator, *(standby.card.peer for standby in self.standbys))

    @property
    def doors(self) -> tuple[str, ...]:
        """Multiaddresses to enter the DHT by, the standbys' included."""
        return self.dht + tuple(address for standby in self.standbys for address in standby.card.dht)

    def encode(self) -> str:
        """Encode the invite as one line: `dtfm<version>.<base64url>.<checksum>`."""
        data = zlib.compress(self.model_dump_json(exclude_defaults=True).encode(), 9)
        body = base64.urlsafe_b64encode(data).decode().rstrip("=")
        return f"dtfm{PROTOCOL_VERSION}.{body}.{_checksum(body)}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Parse an invite, or `@FILE` to read one; blanks, line breaks and quotes from copying are dropped, and so is
        `dtfm-node join` before it, as the owner's page and `serve` show it.

        Raises:
            UserError: the text is not an invite, is damaged, or is for another protocol version.
        """
        if text.startswith("@"):
            try:
                text = Path(text[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"cannot read the invite {text[1:]}: {error}") from None
        line = re.sub(r"[\s\"'`<>]", "", text).removeprefix(_COMMAND)
        form = _FORM.match(line)
        if form is None:
            kind = "is cut short or damaged" if re.match(r"^dtfm\d+\.", line) else "is not an invite"
            raise UserError(f"the text {kind}: copy the whole line that `dtfm-coordinator serve` wrote")
        if int(form["version"]) != PROTOCOL_VERSION:
            raise UserError(
                f"the invite is for protocol version {form['version']} and this program speaks {PROTOCOL_VERSION}: "
                "install the version that the swarm's owner runs"
            )
        if _checksum(form["body"]) != form["checksum"]:
            raise UserError("the invite is cut short or damaged (its checksum does not fit): copy the whole line again")
        try:
            padded = form["body"] + "=" * (-len(form["body"]) % 4)
            inflate = zlib.decompressobj()
            data = inflate.decompress(base64.urlsafe_b64decode(padded), _LIMIT)
            invite = cls.model_validate_json(data)
            for standby in invite.standbys:
                standby.verify(invite.swarm, invite.coordinator)
            invite.token.verify(invite.swarm)
            return invite
        except (binascii.Error, zlib.error, ValidationError, Refused):
            raise UserError(
                "the invite does not say what an invite says: ask the swarm's owner for a new one"
            ) from None

    def service(self, name: str) -> str:
        """Return the libp2p protocol name of a data-plane service of this swarm."""
        return f"/dtfm/{PROTOCOL_VERSION}/{self.swarm}/{name}"


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:8]
