"""TLS between members: the contexts with which a peer shows its credential, and checks those of others."""

import ssl

from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.transport.shown_credential import show_credential

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME, which Python does not name: whether a credential has expired, `Admission.check` says."""


class Trust:
    """The TLS contexts of this peer, which follow its admission.

    Both ends of a connection show a credential and prove its key. OpenSSL accepts what a coordinator of the swarm has
    signed, and what no longer counts as well; `owner` lets in those only who are members now.
    """

    def __init__(self, identity: Identity, admission: Admission) -> None:
        """Make the contexts.

        Args:
            identity: this peer's key.
            admission: this peer's credential, and whom it lets in.
        """
        self._identity, self._admission = identity, admission
        self._client, self._server = _context(ssl.PROTOCOL_TLS_CLIENT), _context(ssl.PROTOCOL_TLS_SERVER)
        # Nobody resumes a session; and a ticket that a client never reads would make its close a reset.
        self._server.num_tickets = 0
        self._shown = b""
        self._trusted: set[bytes] = set()
        self._refresh()

    @property
    def client(self) -> ssl.SSLContext:
        """The context of connections that this peer opens."""
        self._refresh()
        return self._client

    @property
    def server(self) -> ssl.SSLContext:
        """The context of connections that others open."""
        self._refresh()
        return self._server

    def owner(self, certificate: bytes | None) -> str:
        """Return the peer whose credential the other end of a connection has shown, and whose key it has proven.

        Raises:
            Refused: it is no member; with the reason.
        """
        return self._admission.check(certificate).peer

    def _refresh(self) -> None:
        """Take over what has changed in the admission; connections that stand keep what they have."""
        for authority in self._admission.authorities:
            if authority not in self._trusted:
                for context in (self._client, self._server):
                    context.load_verify_locations(cadata=authority)
                self._trusted.add(authority)
        if self._admission.certificate != self._shown:
            self._shown = self._admission.certificate
            for context in (self._client, self._server):
                show_credential(context, self._identity, self._shown)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # keys name peers, not hosts
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags = ssl.VerifyFlags(int(context.verify_flags) | _NO_CHECK_TIME)
    return context
