"""TLS 1.3 with a coordinator: contexts that accept the one key that an invite names, and show a member's credential."""

import secrets
import ssl
import tempfile
from typing import Any

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.credential import read_credential
from dtfm_protocol.identity.keys import Identity, short


def show_credential(context: ssl.SSLContext, identity: Identity, certificate: bytes) -> None:
    """Have `context` show `certificate`, DER, and prove its key, that of `identity`."""
    password = secrets.token_hex(32).encode()
    with tempfile.NamedTemporaryFile(prefix="dtfm-", suffix=".pem") as file:  # the only way into an SSLContext
        file.write(identity.to_pem(password))
        file.write(ssl.DER_cert_to_PEM_cert(certificate).encode())
        file.flush()
        context.load_cert_chain(file.name, password=password)


def check_pin(certificate: bytes | None, coordinator: str) -> None:
    """Check that a certificate, whose key the other end of a connection has proven, is the coordinator's own.

    A member's certificate, which the same coordinator has signed, is not enough.

    Raises:
        Refused: it is not.
    """
    if not certificate:
        raise Refused("no certificate was shown")
    found = read_credential(certificate)
    if not found.peer == found.issuer == coordinator:
        raise Refused(f"the certificate of {short(found.peer)}, not of the coordinator {short(coordinator)}")


class _NotPinned(ssl.SSLCertVerificationError):
    """The fault of a connection to somebody else than the coordinator."""

    def __init__(self, why: str) -> None:
        super().__init__(1, f"not the coordinator that the invite names: {why}")
        self.reason, self.verify_message = "NOT_PINNED", why


class _PinnedSocket(ssl.SSLSocket):
    """A socket whose handshake fails with anybody but the coordinator; what blocking libraries use."""

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        try:
            _check_end(self, self.context)
        except ssl.SSLError:
            self.close()
            raise


class _PinnedObject(ssl.SSLObject):
    """The same for asyncio and uvloop."""

    def do_handshake(self) -> None:
        super().do_handshake()
        _check_end(self, self.context)


class PinnedContext(ssl.SSLContext):
    """Client's context that accepts one coordinator's key, however its certificate is issued or dated.

    OpenSSL checks no chain here: the pin says more than one could. A handshake proves the certificate's key, and
    `do_handshake` of the sockets and objects that this context makes, the only kinds there are, compares it.
    """

    sslsocket_class = _PinnedSocket
    sslobject_class = _PinnedObject
    coordinator = ""

    def __new__(cls, coordinator: str) -> "PinnedContext":
        """See `__init__`."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, coordinator: str) -> None:
        """Accept the coordinator with this peer id, and show nothing."""
        self.coordinator = coordinator
        self.minimum_version = ssl.TLSVersion.TLSv1_3
        self.check_hostname = False
        self.verify_mode = ssl.CERT_NONE


def _check_end(end: Any, context: Any) -> None:
    try:
        check_pin(end.getpeercert(binary_form=True), context.coordinator)
    except Refused as error:
        raise _NotPinned(str(error)) from None
