"""TLS between peers: certificates that carry the peers' own keys, and the contexts that trust those met so far."""

import secrets
import ssl
import tempfile
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import Identity, peer_id_of, public_key_of

CERTIFICATE_LIMIT = 1024
"""Bytes of the largest certificate; a peer's own has about 350."""
PEER_LIMIT = 8
"""Certificates of one peer that are trusted: an identity that is used again shows the same one, as long as nothing
changes."""
TRUSTED_LIMIT = 4096
"""Certificates that are remembered, of all peers: OpenSSL's store takes none back."""
# No clock decides whom to trust: a certificate is believed because libp2p's proof of the peer id came with it.
_FIRST_DAY, _LAST_DAY = datetime(1970, 1, 1), datetime(9999, 12, 31)


def issue(identity: Identity) -> bytes:
    """Issue the identity's self-signed X.509 certificate, DER; the same bytes at every start."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.peer_id)])
    draft = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public_key_of(identity.peer_id))
        .serial_number(1)
        .not_valid_before(_FIRST_DAY)
        .not_valid_after(_LAST_DAY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return identity.certify(draft).public_bytes(Encoding.DER)


def signer(certificate: bytes) -> str:
    """Return the peer id whose key a certificate carries and is signed with.

    Raises:
        Refused: the certificate is not a self-signed one of an Ed25519 key, or is too large.
    """
    if len(certificate) > CERTIFICATE_LIMIT:
        raise Refused(f"a certificate of {len(certificate)} bytes, more than {CERTIFICATE_LIMIT}")
    try:
        parsed = x509.load_der_x509_certificate(certificate)
        parsed.verify_directly_issued_by(parsed)
        key = parsed.public_key()
    except (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm, InvalidSignature):
        raise Refused("a certificate that is not a self-signed one") from None
    if not isinstance(key, Ed25519PublicKey):
        raise Refused("a certificate of another kind of key than peers have")
    return peer_id_of(key)


class Trust:
    """The TLS contexts of this peer, and the peers whose certificates they accept.

    Both ends of a connection show a certificate and prove its key. OpenSSL accepts what leads to one in its store;
    `owner` takes only the very bytes that a peer gave, so that nobody can pass the trust in one key on to another.
    """

    def __init__(self, identity: Identity, limit: int = TRUSTED_LIMIT) -> None:
        """Make the contexts; they trust nobody yet.

        Args:
            identity: the key of this peer's own certificate.
            limit: the most certificates that are remembered.
        """
        self._limit = limit
        self.certificate = issue(identity)
        """This peer's own certificate, DER."""
        password = secrets.token_hex(32).encode()
        with tempfile.NamedTemporaryFile(prefix="dtfm-", suffix=".pem") as file:  # the only way into an SSLContext
            file.write(identity.to_pem(password))
            file.write(ssl.DER_cert_to_PEM_cert(self.certificate).encode())
            file.flush()
            self.client, self.server = (
                _context(protocol, file.name, password)
                for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
            )
        # Nobody resumes a session; and a ticket that a client never reads would make its close a reset.
        self.server.num_tickets = 0
        self._owners: dict[bytes, str] = {}

    def admit(self, peer: str, certificate: bytes) -> None:
        """Accept `certificate` from now on, as that of `peer`, whose peer id has been proven.

        Raises:
            Refused: the certificate is not that peer's, or too many are remembered.
        """
        if certificate in self._owners:
            return
        if signer(certificate) != peer:
            raise Refused("a certificate of another peer")
        if sum(owner == peer for owner in self._owners.values()) >= PEER_LIMIT:
            raise Refused(f"more than {PEER_LIMIT} certificates of one peer")
        if len(self._owners) >= self._limit:
            raise Refused(f"no room to trust more than {self._limit} peers")
        try:
            for context in (self.client, self.server):
                context.load_verify_locations(cadata=certificate)
        except ssl.SSLError:
            raise Refused("a certificate that OpenSSL does not read") from None
        self._owners[certificate] = peer

    def owner(self, certificate: bytes | None) -> str:
        """Return the peer whose certificate the other end of a connection has shown, and whose key it has proven.

        Raises:
            Refused: no peer gave this certificate.
        """
        peer = self._owners.get(certificate or b"")
        if peer is None:
            raise Refused("a certificate that no peer gave")
        return peer


def _context(protocol: int, chain: str, password: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # keys name peers, not hosts
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(chain, password=password)
    return context
