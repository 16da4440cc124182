"""A member's credential: an X.509 certificate of its key, signed by a coordinator of the swarm.

Its form is such that ordinary TLS checks it: coordinators are authorities, members' certificates are signed by one of
them. No clock takes part in that; whether a credential has expired is for `Admission` to judge.
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.key_succession import Succession, decode_successions, encode_successions
from dtfm_protocol.identity.keys import Identity, peer_id_of, public_key_of

CERTIFICATE_LIMIT = 2048
"""Bytes of the largest certificate; a member's has about 450, a coordinator's 330 and 112 for each succession."""
SUCCESSIONS = x509.ObjectIdentifier("2.25.108679298986899628319105150075656376542")
"""Name of the extension that holds a coordinator's successions, made of a random UUID (X.667)."""
FIRST_DAY, LAST_DAY = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


@dataclass(frozen=True)
class Credential:
    """What a certificate that verified says."""

    peer: str
    """Peer id of the key that it is for."""
    issuer: str
    """Peer id of the key that signed it: a coordinator's, or the same for a coordinator's own."""
    swarm: str
    """The swarm's id, in which alone it counts; "" in a coordinator's own."""
    token: str
    """Id of the token with which its owner entered; "" in a coordinator's own."""
    expires: float
    """Unix seconds after which nobody enters with it."""
    successions: tuple[Succession, ...] = ()
    """Keys that the coordinator's own has followed, the oldest first; their signatures have not been checked."""

    @property
    def is_coordinators(self) -> bool:
        """Whether it is somebody's own, signed by nobody else; whether that coordinates a swarm it cannot say."""
        return self.peer == self.issuer


def issue_credential(coordinator: Identity, swarm: str, peer: str, token: str, expires: float) -> bytes:
    """Issue the certificate with which `peer` is a member of `swarm`, DER.

    Raises:
        Refused: `peer` is not a peer id.
    """
    names = (
        x509.NameAttribute(NameOID.COMMON_NAME, peer),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, swarm),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, token),
    )
    draft = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(names))
        .issuer_name(_authority_name(coordinator.peer_id))
        .public_key(public_key_of(peer))
        .serial_number(secrets.randbits(63) + 1)
        .not_valid_before(FIRST_DAY)  # clocks differ: a credential counts from the moment at which it is there
        .not_valid_after(datetime.fromtimestamp(int(expires), UTC))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return coordinator.certify(draft).public_bytes(Encoding.DER)


def authority_certificate(coordinator: Identity, successions: tuple[Succession, ...] = ()) -> bytes:
    """Issue the coordinator's own certificate, which signs those of members, DER; the same bytes at every start.

    Args:
        coordinator: the coordinator's key.
        successions: the keys that it has followed, the oldest first.
    """
    name = _authority_name(coordinator.peer_id)
    draft = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public_key_of(coordinator.peer_id))
        .serial_number(1)
        .not_valid_before(FIRST_DAY)
        .not_valid_after(LAST_DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    if successions:
        followed = x509.UnrecognizedExtension(SUCCESSIONS, encode_successions(successions))
        draft = draft.add_extension(followed, critical=False)
    return coordinator.certify(draft).public_bytes(Encoding.DER)


def read_credential(certificate: bytes) -> Credential:
    """Read a certificate, and check that the key of the coordinator that it names has signed it.

    Whether that is a coordinator of the swarm, and whether the credential still counts, is for the caller to judge.

    Raises:
        Refused: it is not such a certificate, is too large, or is signed by another key than it says.
    """
    if len(certificate) > CERTIFICATE_LIMIT:
        raise Refused(f"a certificate of {len(certificate)} bytes, more than {CERTIFICATE_LIMIT}")
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        key = parsed.public_key()
        issuer = _only(parsed.issuer, NameOID.COMMON_NAME)
        subject = _only(parsed.subject, NameOID.COMMON_NAME)
        swarm, token = "", ""
        if issuer != subject:
            swarm = _only(parsed.subject, NameOID.ORGANIZATION_NAME)
            token = _only(parsed.subject, NameOID.ORGANIZATIONAL_UNIT_NAME)
        is_authority = parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        public_key_of(issuer).verify(parsed.signature, parsed.tbs_certificate_bytes)
    except (ValueError, TypeError, x509.InvalidVersion, x509.ExtensionNotFound, x509.DuplicateExtension,
            UnsupportedAlgorithm, InvalidSignature):  # fmt: skip
        raise Refused("a certificate that no coordinator signed") from None
    if not isinstance(key, Ed25519PublicKey) or peer_id_of(key) != subject:
        raise Refused("a certificate of another key than the one that it names")
    if is_authority != (issuer == subject):
        raise Refused("a certificate that is an authority's and a member's at once")
    followed = _successions(parsed.extensions, subject) if is_authority else ()
    return Credential(subject, issuer, swarm, token, parsed.not_valid_after_utc.timestamp(), followed)


def _successions(extensions: x509.Extensions, peer: str) -> tuple[Succession, ...]:
    """Return the successions in a coordinator's own certificate. Raises Refused where they are none."""
    found = [one.value for one in extensions if one.oid == SUCCESSIONS]
    if not found or not isinstance(found[0], x509.UnrecognizedExtension):
        return ()
    return decode_successions(found[0].value, peer)


def _authority_name(peer: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, peer)])


def _only(name: x509.Name, kind: x509.ObjectIdentifier) -> str:
    (found,) = name.get_attributes_for_oid(kind)
    return str(found.value)
