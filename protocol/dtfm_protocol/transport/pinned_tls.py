"""TLS 1.3 with a coordinator: contexts that accept the one key that an invite names, or the key that has taken its
place."""

import ssl
from collections.abc import Callable
from typing import Any

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.coordinators import Coordinators


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
    """Client's context that accepts one coordinator's key, or that of its successor, however the certificate is issued
    or dated.

    OpenSSL checks no chain here: the pin says more than one could. A handshake proves the certificate's key, and
    `do_handshake` of the sockets and objects that this context makes, the only kinds there are, compares it.
    """

    sslsocket_class = _PinnedSocket
    sslobject_class = _PinnedObject
    coordinator = ""

    def __new__(cls, coordinator: str, *_: object) -> "PinnedContext":
        """See `__init__`."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(
        self,
        coordinator: str,
        coordinators: Coordinators | None = None,
        seen: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Accept the coordinator with this peer id, and show nothing.

        Args:
            coordinator: the peer id.
            coordinators: know who has taken whose place, and in which swarm; None: there is no such thing as a
                successor.
            seen: called with the certificate, DER, of each connection that comes about, in whatever thread that is.
        """
        self.coordinator, self.coordinators = coordinator, coordinators or Coordinators("", [coordinator])
        self.seen = seen
        self.minimum_version = ssl.TLSVersion.TLSv1_3
        self.check_hostname = False
        self.verify_mode = ssl.CERT_NONE


def _check_end(end: Any, context: Any) -> None:
    certificate = end.getpeercert(binary_form=True)
    try:
        context.coordinators.check_pin(certificate, context.coordinator)
    except Refused as error:
        raise _NotPinned(str(error)) from None
    context.seen(certificate)
