"""Who is in the swarm, as far as presence, reports and DHT records tell. Pure: told what happened, asked what is."""

from dataclasses import dataclass

from dtfm_protocol.control import Presence, Report
from dtfm_protocol.records import Profile


@dataclass
class Member:
    """One peer that was ever seen."""

    peer: str
    order: int
    """First seen as the how-manieth: ties between equal peers are broken by age."""
    session: str = ""
    online: bool = False
    profile: Profile | None = None
    report: Report | None = None


class Members:
    """All peers that were ever seen."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def _member(self, peer: str) -> Member:
        return self._members.setdefault(peer, Member(peer, len(self._members)))

    def seen(self, peer: str, presence: Presence) -> None:
        """A presence message came."""
        member = self._member(peer)
        if not presence.online and member.online and presence.session != member.session:
            return  # the last will of a session that this peer has since replaced
        if presence.session != member.session:
            member.report = None
        member.session, member.online = presence.session, presence.online

    def reported(self, peer: str, report: Report) -> None:
        """A report came: the peer is there, whatever its presence said last."""
        member = self._member(peer)
        if member.session and report.session != member.session and member.online:
            return  # of a session that is over
        member.session, member.online, member.report = report.session, True, report

    def listed(self, profiles: dict[str, Profile]) -> None:
        """The DHT was read."""
        for peer, profile in profiles.items():
            self._member(peer).profile = profile

    def get(self, peer: str) -> Member | None:
        """The member, if it was ever seen."""
        return self._members.get(peer)

    def online(self) -> list[Member]:
        """Those who are connected, oldest first."""
        return [member for member in self._members.values() if member.online]

    def ready(self) -> list[Member]:
        """Those who can be given work: connected, and their profile is known."""
        return [
            member
            for member in self.online()
            if member.profile is not None and member.report is not None and member.report.state != "measuring"
        ]

    def waiting_for(self, needed: int) -> str:
        """What `needed` ready nodes lack, in one line."""
        ready, online = len(self.ready()), self.online()
        unlisted = [m for m in online if m.profile is None and m.report is not None and m.report.state != "measuring"]
        measuring = len(online) - ready - len(unlisted)
        parts = [f"{ready} of {needed} are ready"]
        if measuring:
            parts.append(f"{measuring} measuring")
        if unlisted:
            # Connected to the broker but absent from the DHT: it sees other DHT peers than this coordinator.
            parts.append(f"{len(unlisted)} connected, but not seen in the DHT yet")
        return f"waiting for {needed - ready} more nodes ({'; '.join(parts)})"

    def missing(self, peers: tuple[str, ...]) -> list[str]:
        """Those of `peers` who are not connected."""
        return [peer for peer in peers if not ((member := self.get(peer)) and member.online)]

    def broken(self, peers: tuple[str, ...], plan_version: int) -> Member | None:
        """One of `peers` that cannot go on under this plan, if there is any."""
        for peer in peers:
            member = self.get(peer)
            report = member.report if member else None
            if report and report.plan_version == plan_version and report.state in {"stalled", "diverged"}:
                return member
        return None
