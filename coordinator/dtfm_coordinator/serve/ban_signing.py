"""Signing of bans, and of rulings on them, that a coordinator's ledger has: anew where who signed them was replaced."""

from dtfm_coordinator.membership.membership_ledger import MembershipLedger
from dtfm_protocol.identity.admission import Admission
from dtfm_protocol.identity.ban import Ban
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.keys import Identity


class BanSigning:
    """Signing by one coordinator, which signs nothing twice."""

    def __init__(self, identity: Identity, admission: Admission) -> None:
        """Sign nothing yet.

        Args:
            identity: the coordinator's key.
            admission: knows whose words count.
        """
        self._identity, self._admission = identity, admission
        self._bans: dict[str, Ban] = {}
        self._rulings: dict[BanRuling, BanRuling] = {}

    def ban(self, ban: Ban) -> Ban:
        """Return a ban as one that counts: by a coordinator that may lead now."""
        if ban.by in self._admission.coordinators:
            return ban
        if ban.subject not in self._bans:
            self._bans[ban.subject] = Ban.of(self._identity, self._admission.swarm, ban.subject)
        return self._bans[ban.subject]

    def ruling(self, ruling: BanRuling) -> BanRuling:
        """Return a ruling as one that counts, as `ban`; it says the same, of the same time."""
        if ruling.by in self._admission.coordinators:
            return ruling
        if ruling not in self._rulings:
            swarm = self._admission.swarm
            self._rulings[ruling] = BanRuling.of(self._identity, swarm, ruling.subject, ruling.at, holds=ruling.holds)
        return self._rulings[ruling]

    def bans(self, ledger: MembershipLedger) -> tuple[Ban, ...]:
        """Return the bans of a ledger that hold."""
        return tuple(self.ban(ban) for subject, ban in ledger.bans.items() if ledger.is_ban(subject))

    def rulings(self, ledger: MembershipLedger) -> tuple[BanRuling, ...]:
        """Return the rulings of a ledger."""
        return tuple(map(self.ruling, ledger.rulings.values()))
