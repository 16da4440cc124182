"""Admission: whom a peer of the swarm lets in, by credentials that coordinators signed, bans, and the plan in force."""

import time
from collections.abc import Callable, Collection, Iterable

from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_list import BanList
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.credential import Credential, read_credential
from dtfm_protocol.identity.keys import short

REMEMBERED = 4096
"""Certificates whose signatures are checked once."""
MOST_AUTHORITIES = 16
FORMER_SECONDS = 31 * 86_400.0
"""Credentials that a key has signed which was replaced count no longer than this from then on: each was for 30 days, so
that whoever has got hold of the old key makes no members for ever."""


class Admission:
    """Rule of who is let in, as one peer of the swarm knows it.

    A credential counts if a coordinator of the swarm signed it and neither its peer nor its token is banned; once it
    has expired, only while the plan in force names its peer. Coordinators' own certificates always count, and tell
    whose place they have taken.
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
            coordinators: peer ids whose signatures count; as `Coordinators`, several admissions may share what they
                learn.
            certificate: this peer's own credential, DER, which it shows to others.
            authorities: certificates of coordinators that are known, DER.
            clock: gives Unix seconds.
        """
        self.swarm, self.certificate = swarm, certificate
        known = coordinators if isinstance(coordinators, Coordinators) else Coordinators(swarm, coordinators)
        self.coordinators = known
        """Who may lead now."""
        self.ban_list = BanList(swarm, known)
        """Who is banned; bans are added by `ban` and `recall`."""
        self._clock = clock
        self._authorities: dict[str, bytes] = {}
        self._in_force: frozenset[str] = frozenset()
        self._read: dict[bytes, Credential] = {}
        self._met: dict[str, bytes] = {}
        self._told: list[Callable[[], None]] = []
        self._told_of_kicks: list[Callable[[str], None]] = []
        self._kicked: dict[str, float] = {}
        self.trust_all(authorities)

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """Certificates of the coordinators that are known, DER: what TLS checks others' certificates by.

        Those of keys that were replaced are among them as long as anything that they signed counts.
        """
        now, former = self._clock(), self.coordinators.succession_of
        found = {peer: one.at for peer in self._authorities if (one := former(peer)) is not None}
        ages = {peer: at for peer, at in found.items() if now < at + FORMER_SECONDS}
        present = [peer for peer in self._authorities if peer not in found]
        order = [*present, *sorted(ages, key=lambda peer: -ages[peer])]
        return tuple(self._authorities[peer] for peer in order[:MOST_AUTHORITIES])

    def when_changed(self, told: Callable[[], None]) -> None:
        """Call `told` whenever somebody may have become a member, or is one no more."""
        self._told.append(told)

    def trust(self, authority: bytes) -> None:
        """Let members in whose credentials are signed with the key of this coordinator's certificate.

        Raises:
            Refused: it is not the certificate of a coordinator of this swarm.
        """
        found = read_credential(authority)
        if not found.is_coordinators:
            raise Refused("the certificate of a member, where a coordinator's belongs")
        is_news = bool(found.successions) and self.coordinators.follow(found)
        peer = found.peer
        if peer not in self.coordinators and self.coordinators.succession_of(peer) is None:
            raise Refused("the certificate of somebody who does not coordinate this swarm")
        if self._authorities.get(peer) != authority and not self._is_older(found):
            self._authorities[peer] = authority
            is_news = True
        if is_news:
            self._tell()

    def _is_older(self, found: Credential) -> bool:
        """Whether a certificate says less than the one of the same coordinator that is known."""
        known = self._authorities.get(found.peer)
        return known is not None and len(read_credential(known).successions) > len(found.successions)

    def trust_all(self, authorities: Iterable[bytes]) -> None:
        """As `trust`, in any order: one may say whose place another one has taken.

        Raises:
            Refused: one of them is not the certificate of a coordinator of this swarm; the others count.
        """
        left, fault = list(authorities), None
        while left:
            refused = []
            for authority in left:
                try:
                    self.trust(authority)
                except Refused as error:
                    refused.append(authority)
                    fault = error
            if len(refused) == len(left):
                assert fault is not None
                raise fault
            left = refused

    def follow(self, peers: Collection[str]) -> None:
        """Let the `peers` of the plan in force in, whenever their credentials expire."""
        if self._in_force != frozenset(peers):
            self._in_force = frozenset(peers)
            self._tell()

    @property
    def bans(self) -> dict[str, Ban]:
        """All bans that are known, whether they hold or not, by subject."""
        return self.ban_list.bans

    def ban(self, bans: Iterable[Ban], rulings: Iterable[BanRuling] = ()) -> None:
        """Add bans, and rulings on them; those of nobody who coordinates now are dropped.

        Raises:
            Refused: one of them is not signed by the coordinator that it names.
        """
        self._add_bans(bans, rulings, is_own=False)

    def recall(self, bans: Iterable[Ban], rulings: Iterable[BanRuling] = ()) -> None:
        """Take up bans from this peer's own disk; those of keys that were replaced meanwhile count, too."""
        self._add_bans(bans, rulings, is_own=True)

    def _add_bans(self, bans: Iterable[Ban], rulings: Iterable[BanRuling], *, is_own: bool) -> None:
        if self.ban_list.add(bans, rulings, is_own=is_own):
            self._tell()

    def when_kicked(self, told: Callable[[str], None]) -> None:
        """Call `told` with each peer that was kicked: whose streams are to end, and which may open others."""
        self._told_of_kicks.append(told)

    def kick(self, peer: str, at: float) -> None:
        """End the streams of a peer that the owner has sent away at `at`, Unix seconds; again, nothing happens."""
        if self._kicked.get(peer, 0.0) >= at:
            return
        self._kicked.pop(peer, None)
        self._kicked[peer] = at
        if len(self._kicked) > REMEMBERED:
            self._kicked.pop(next(iter(self._kicked)))
        for told in self._told_of_kicks:
            told(peer)

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
        is_shown = self._authorities.get(credential.peer) == certificate
        if credential.successions and not is_shown:
            self.trust(certificate)
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
        if credential.is_coordinators and credential.peer in self.coordinators:
            return
        former = self.coordinators.succession_of(credential.issuer)
        if credential.is_coordinators or (credential.issuer not in self.coordinators and former is None):
            raise Refused(f"{name} shows a credential that no coordinator of this swarm signed", Cause.MEMBER)
        if credential.swarm != self.swarm:
            raise Refused(f"{name} shows a credential of another swarm", Cause.MEMBER)
        if self.ban_list.is_banned(credential.peer, credential.token):
            raise Refused(f"{name} is banned from this swarm", Cause.MEMBER)
        if former is not None and credential.expires > former.at + FORMER_SECONDS:
            raise Refused(f"{name} shows a credential that a key signed which was replaced", Cause.MEMBER)
        if credential.expires < self._clock() and credential.peer not in self._in_force:
            raise Refused(f"the credential of {name} has expired", Cause.MEMBER)

    def _tell(self) -> None:
        for told in self._told:
            told()
