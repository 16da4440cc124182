"""Admission: whom a peer of the swarm lets in, by credentials that coordinators signed, bans, and the plan in force."""

import time
from collections.abc import Callable, Collection, Iterable

from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.credential import Credential, read_credential
from dtfm_protocol.identity.keys import short

REMEMBERED = 4096
"""Certificates whose signatures are checked once."""
MOST_BANS = 4096


class Admission:
    """Rule of who is let in, as one peer of the swarm knows it.

    A credential counts if a coordinator of the swarm signed it and neither its peer nor its token is banned; once it
    has expired, only while the plan in force names its peer. Coordinators' own certificates always count.
    """

    def __init__(
        self,
        swarm: str,
        coordinators: Collection[str],
        certificate: bytes,
        authorities: Iterable[bytes] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Know nobody yet but the coordinators.

        Args:
            swarm: the swarm's id.
            coordinators: peer ids whose signatures count; the collection may change.
            certificate: this peer's own credential, DER, which it shows to others.
            authorities: certificates of coordinators that are known, DER.
            clock: gives Unix seconds.
        """
        self.swarm, self.certificate = swarm, certificate
        self.bans: dict[str, Ban] = {}
        """All bans that are known, by subject."""
        self._coordinators, self._clock = coordinators, clock
        self._authorities: dict[str, bytes] = {}
        self._in_force: frozenset[str] = frozenset()
        self._read: dict[bytes, Credential] = {}
        self._met: dict[str, bytes] = {}
        self._told: list[Callable[[], None]] = []
        for authority in authorities:
            self.trust(authority)

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """Certificates of the coordinators that are known, DER: what TLS checks others' certificates by."""
        return tuple(self._authorities.values())

    def when_changed(self, told: Callable[[], None]) -> None:
        """Call `told` whenever somebody may have become a member, or is one no more."""
        self._told.append(told)

    def trust(self, authority: bytes) -> None:
        """Let members in whose credentials are signed with the key of this coordinator's certificate.

        Raises:
            Refused: it is not the certificate of a coordinator of this swarm.
        """
        found = read_credential(authority)
        if found.issuer != found.peer or found.peer not in self._coordinators:
            raise Refused("the certificate of somebody who does not coordinate this swarm")
        if self._authorities.get(found.peer) != authority:
            self._authorities[found.peer] = authority
            self._tell()

    def follow(self, peers: Collection[str]) -> None:
        """Let the `peers` of the plan in force in, whenever their credentials expire."""
        if self._in_force != frozenset(peers):
            self._in_force = frozenset(peers)
            self._tell()

    def ban(self, bans: Iterable[Ban]) -> None:
        """Add bans; those of nobody who coordinates are dropped.

        Raises:
            Refused: one of them is not signed by the coordinator that it names.
        """
        new = [ban for ban in bans if ban.subject not in self.bans and ban.by in self._coordinators]
        for ban in new:
            ban.verify(self.swarm)
            if len(self.bans) < MOST_BANS:
                self.bans[ban.subject] = ban
        if new:
            self._tell()

    def check(self, certificate: bytes | None, peer: str | None = None) -> Credential:
        """Return what a certificate says whose key the other end has proven, if it is to be let in.

        Args:
            certificate: what the other end has shown, DER; None: nothing.
            peer: peer id that the other end has proven otherwise, of which the certificate must be; None: it has
                proven the certificate's key.

        Raises:
            Refused: it is not; with the reason.
        """
        if not certificate:
            raise Refused("no credential was shown", Cause.MEMBER)
        credential = self._read.get(certificate)
        if credential is None:
            credential = read_credential(certificate)
            if len(self._read) >= REMEMBERED:
                self._read.pop(next(iter(self._read)))
            self._read[certificate] = credential
        if peer not in (None, credential.peer):
            raise Refused(f"{short(str(peer))} shows the credential of {short(credential.peer)}", Cause.MEMBER)
        self._judge(credential)
        self._met.pop(credential.peer, None)
        self._met[credential.peer] = certificate
        if len(self._met) > REMEMBERED:
            self._met.pop(next(iter(self._met)))
        return credential

    def is_member(self, peer: str) -> bool:
        """Whether `peer` has shown a credential here with which it would be let in now."""
        try:
            return self.check(self._met.get(peer)).peer == peer
        except Refused:
            return False

    def _judge(self, credential: Credential) -> None:
        """Raises Refused where the credential does not count now."""
        name = short(credential.peer)
        if credential.issuer not in self._coordinators:
            raise Refused(f"{name} shows a credential that no coordinator of this swarm signed", Cause.MEMBER)
        if credential.peer == credential.issuer:
            return
        if credential.swarm != self.swarm:
            raise Refused(f"{name} shows a credential of another swarm", Cause.MEMBER)
        if f"peer:{credential.peer}" in self.bans or f"token:{credential.token}" in self.bans:
            raise Refused(f"{name} is banned from this swarm", Cause.MEMBER)
        if credential.expires < self._clock() and credential.peer not in self._in_force:
            raise Refused(f"the credential of {name} has expired", Cause.MEMBER)

    def _tell(self) -> None:
        for told in self._told:
            told()
