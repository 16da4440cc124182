"""List of bans as one peer knows them, with the rulings that say which of them hold."""

from collections.abc import Container, Iterable

from dtfm_protocol.identity.ban import Ban, subjects_of
from dtfm_protocol.identity.ban_ruling import BanRuling

MOST_BANS = 4096
MOST_RULINGS = 1000
"""Bans on which there are rulings: all of those are told in one answer."""


class BanList:
    """List of bans and rulings, which coordinators have signed.

    What a coordinator has signed that was replaced since counts as far as this peer has believed it before, and as long
    as none that coordinates now says otherwise.
    """

    def __init__(self, swarm: str, coordinators: Container[str]) -> None:
        """Know of nobody who is banned.

        Args:
            swarm: the swarm's id.
            coordinators: peer ids of those who coordinate now.
        """
        self._swarm, self._coordinators = swarm, coordinators
        self.bans: dict[str, Ban] = {}
        """All bans that are known, whether they hold or not, by subject."""
        self.rulings: dict[str, BanRuling] = {}
        """The ruling that counts on each subject on which there is one."""

    def add(self, bans: Iterable[Ban], rulings: Iterable[BanRuling] = (), *, is_own: bool = False) -> bool:
        """Add bans and rulings; those of nobody who coordinates now are dropped. Return whether any is new.

        Args:
            is_own: whether they come from this peer's own disk, so that those of keys that were replaced meanwhile
                count, too.

        Raises:
            Refused: one of them is not signed by the coordinator that it names.
        """
        is_news = False
        for ban in bans:
            if (is_own or ban.by in self._coordinators) and self._is_needed(ban):
                ban.verify(self._swarm)
                self.bans[ban.subject] = ban
                is_news = True
        for ruling in rulings:
            if (is_own or ruling.by in self._coordinators) and self._is_later(ruling):
                ruling.verify(self._swarm)
                self.rulings[ruling.subject] = ruling
                is_news = True
        return is_news

    def _is_needed(self, ban: Ban) -> bool:
        known = self.bans.get(ban.subject)
        if known is None:
            return len(self.bans) < MOST_BANS
        # One whose signer was replaced gives way, so that this peer can hand on one that counts everywhere.
        return known.by not in self._coordinators and ban.by in self._coordinators

    def _is_later(self, ruling: BanRuling) -> bool:
        known = self.rulings.get(ruling.subject)
        if known is None:
            return len(self.rulings) < MOST_RULINGS
        before, after = ((one.by in self._coordinators, *one.order) for one in (known, ruling))
        return after > before

    def holds(self, subject: str) -> bool:
        """Whether a subject is banned."""
        ban, ruling = self.bans.get(subject), self.rulings.get(subject)
        if ruling is None:
            return ban is not None
        # A thief of a key that was replaced may have signed it.
        is_overruled = ban is not None and ban.by in self._coordinators and ruling.by not in self._coordinators
        return is_overruled or ruling.holds

    def is_banned(self, peer: str, token: str) -> bool:
        """Whether `peer`, as far as it has entered with `token`, is banned."""
        return any(map(self.holds, subjects_of(peer, token)))

    @property
    def standing(self) -> tuple[Ban, ...]:
        """The bans that hold, in the order of their subjects."""
        return tuple(self.bans[subject] for subject in sorted(self.bans) if self.holds(subject))
