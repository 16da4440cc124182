"""The coordinators of a swarm, as one peer knows them: those of its invite, and who has taken their places."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from dtfm_protocol.errors import Cause, Refused
from dtfm_protocol.identity.credential import Credential, read_credential
from dtfm_protocol.identity.key_succession import Succession
from dtfm_protocol.identity.keys import short


class Coordinators(Collection[str]):
    """Peer ids of the coordinators that may lead now, in the invite's order.

    It learns of new keys from their certificates, which say whose places they have taken, and believes nothing else.
    The first succession that it hears of counts: a key that was replaced has no say in who replaces it.
    """

    def __init__(self, swarm: str, first: Iterable[str]) -> None:
        """Know the coordinators that an invite names, `first`."""
        self._swarm = swarm
        self._first = tuple(first)
        self._replaced: dict[str, Succession] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in tuple(self)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(map(self.present, self._first)))

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    @property
    def replaced(self) -> tuple[Succession, ...]:
        """All successions that are known."""
        return tuple(self._replaced.values())

    def present(self, peer: str) -> str:
        """Return who has taken the place of `peer`; itself, where nobody has."""
        return _end(self._replaced, peer)

    def succession_of(self, peer: str) -> Succession | None:
        """Return by whom a former coordinator was replaced; None: `peer` is none."""
        return self._replaced.get(peer)

    def may_plan(self, peer: str, version: int) -> bool:
        """Whether a plan of `version` by `peer` counts: one of a key that was replaced later does."""
        former = self._replaced.get(peer)
        return peer in self if former is None else version <= former.called

    def renamed(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Return multiaddresses of coordinators with the peer ids that those have now."""
        parts = (address.rpartition("/p2p/") for address in addresses)
        return tuple(f"{where}/p2p/{self.present(peer)}" if where else peer for where, _, peer in parts)

    def follow(self, certificate: Credential) -> bool:
        """Take note of whose place the coordinator has taken whose own certificate this is; whether that is news.

        Raises:
            Refused: it has taken no known coordinator's place, or not by the word of that one.
        """
        chain = certificate.successions
        news = [one for one in chain if _successor(self._replaced, one.before) != one.after]
        if not news or not certificate.is_coordinators:
            return False
        known = {*self, *self._first, *self._replaced}
        if not known & {certificate.peer, *(one.before for one in chain)}:
            raise Refused("the successor of nobody who coordinates this swarm", Cause.MEMBER)
        replaced = dict(self._replaced)
        for one in chain:
            if (other := _successor(replaced, one.before)) not in (None, one.after):
                was = f"{short(one.before)} was replaced by {short(str(other))}"
                raise Refused(f"{was}, and {short(one.after)} says: by it", Cause.MEMBER)
            one.verify(self._swarm)
            if _end(replaced, one.after) == one.before:
                raise Refused("a succession that leads back", Cause.MEMBER)
            replaced.setdefault(one.before, one)
        self._replaced = replaced
        return True

    def check_pin(self, certificate: bytes | None, pinned: str) -> None:
        """Check that a certificate, whose key the other end of a connection has proven, is the coordinator's own.

        A member's certificate, which the same coordinator has signed, is not enough; that of a key which has taken its
        place is. Nothing is noted.

        Args:
            certificate: what was shown, DER.
            pinned: the coordinator that is expected.

        Raises:
            Refused: it is not.
        """
        if not certificate:
            raise Refused("no certificate was shown")
        found = read_credential(certificate)
        trial = Coordinators(self._swarm, (*self._first, pinned))
        trial._replaced = dict(self._replaced)
        if found.is_coordinators and found.successions:
            trial.follow(found)
        if not found.is_coordinators or trial.present(pinned) != found.peer:
            raise Refused(f"the certificate of {short(found.peer)}, not of the coordinator {short(pinned)}")


def _successor(replaced: Mapping[str, Succession], peer: str) -> str | None:
    return replaced[peer].after if peer in replaced else None


def _end(replaced: Mapping[str, Succession], peer: str) -> str:
    while peer in replaced:
        peer = replaced[peer].after
    return peer
