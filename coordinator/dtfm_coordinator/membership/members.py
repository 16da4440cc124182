"""Members of the swarm, as far as presence, reports and DHT records tell. Pure: told what happened, asked what is."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from dtfm_protocol.control.messages import Presence, Report
from dtfm_protocol.discovery.records import Profile
from dtfm_protocol.identity.keys import short
from dtfm_protocol.process.timeouts import TIMEOUTS
from dtfm_protocol.process.version_agreement import Distance, distance


@dataclass
class Member:
    """Peer that was ever seen, and what is known of it."""

    peer: str
    order: int
    """Number of peers seen before it: ties between equal peers are broken by age."""
    session: str = ""
    name: str = ""
    """What its person calls it, if anything; show it with the end of the peer id (`keys.called`)."""
    said_version: str = ""
    """Version of its program, as it said when it came; "": it did not."""
    online: bool = False
    profile: Profile | None = None
    report: Report | None = None
    heard: float = 0.0
    """Clock's seconds when its last report came."""
    kicked: str = ""
    """Session in which the owner has sent it away; "" where it was not."""
    came: float = 0.0
    """Clock's seconds when its session was heard of first."""
    suspected: float = 0.0
    """Clock's seconds when another peer last reported it as gone."""

    @property
    def is_here(self) -> bool:
        """Whether it is connected, and was not sent away since it came."""
        return self.online and not (self.kicked and self.kicked == self.session)

    @property
    def version(self) -> str:
        """Version of its program; "": not known."""
        return self.said_version or (self.profile.version if self.is_listed and self.profile is not None else "")

    @property
    def is_paused(self) -> bool:
        """Whether it stays a member, but does nothing for now, as its person or its limits want it."""
        return self.report is not None and self.report.state == "paused"

    @property
    def is_listed(self) -> bool:
        """Whether the profile of its present session is known: that of an earlier one may have other addresses."""
        return self.profile is not None and self.profile.session == self.session


MOST_MEMBERS = 4096
"""Peers that are remembered: of more, those that are gone are forgotten first, and further ones are not let in."""


class Members:
    """Record of the peers that were ever seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, version: str = "") -> None:
        """Nobody was seen yet; `version`: this coordinator's, by which members fit or not ("": all of them do)."""
        self._clock, self._version = clock, version
        self._members: dict[str, Member] = {}
        self._seen = 0
        """Number of peers that were ever seen."""

    def _member(self, peer: str) -> Member | None:
        """Return what is known of a peer, from now on; None: there is no room for one more."""
        known = self._members.get(peer)
        if known is None and self._make_room():
            known = self._members[peer] = Member(peer, self._seen)
            self._seen += 1
        return known

    def _make_room(self) -> bool:
        """Whether there is room for one more peer, maybe now that one which is gone was forgotten."""
        if len(self._members) < MOST_MEMBERS:
            return True
        gone = min((m for m in self._members.values() if not m.online), key=lambda m: m.heard, default=None)
        if gone is not None:
            del self._members[gone.peer]
        return gone is not None

    def seen(self, peer: str, presence: Presence) -> None:
        """Take a presence message of `peer`."""
        member = self._member(peer)
        if member is None:
            return
        if not presence.online and member.online and presence.session != member.session:
            return  # the last will of a session that this peer has since replaced
        if presence.session != member.session:
            member.report, member.came = None, self._clock()
        member.session, member.online = presence.session, presence.online
        if presence.online:
            member.name, member.said_version = presence.name, presence.version
            if presence.profile is not None:
                member.profile = presence.profile

    def reported(self, peer: str, report: Report) -> bool:
        """Take a report: the peer is there, whatever its presence said last. False if its session is over."""
        member = self._member(peer)
        if member is None:
            return False
        if member.session and report.session != member.session and member.online:
            return False  # of a session that is over
        if report.session != member.session:
            member.came = self._clock()
        before, member.report = member.report, report
        member.session, member.online = report.session, True
        member.heard = self._clock()
        for peer_lost in report.lost:
            suspect = self._members.get(peer_lost)
            if suspect is not None and (before is None or peer_lost not in before.lost):
                suspect.suspected = self._clock()
        return True

    def kick(self, peer: str) -> None:
        """Take a peer for gone until it comes back in another session."""
        if (member := self.get(peer)) is not None:
            member.kicked = member.session

    def listed(self, profiles: dict[str, Profile]) -> None:
        """Take the profiles that were read from the DHT, by peer id."""
        for peer, profile in profiles.items():
            member = self._member(peer)
            if member is not None:
                member.profile = profile

    def names(self) -> dict[str, str]:
        """Return what members call themselves by the end of their ids: of those that have a name, and an end of their
        own, for anybody may look for a key whose end is another's."""
        found: dict[str, str] = {}
        for member in self._members.values():
            end = short(member.peer)
            found[end] = member.name if end not in found else ""
        return {end: name for end, name in found.items() if name}

    def unlisted(self) -> dict[str, str]:
        """Return the session of each peer that is connected, and whose profile was not found yet, though there is one:
        a node that begins with a pause makes it after that."""
        return {
            member.peer: member.session
            for member in self.online()
            if not member.is_listed and not (member.report and member.report.state in {"paused", "measuring"})
        }

    def get(self, peer: str) -> Member | None:
        """Return what is known of `peer`; None if it was never seen."""
        return self._members.get(peer)

    def known(self) -> list[Member]:
        """Return all members of which something is remembered, whether they are connected or not."""
        return list(self._members.values())

    def online(self) -> list[Member]:
        """Return the members that are connected, oldest first."""
        return [member for member in self._members.values() if member.is_here]

    def heard(self) -> list[Member]:
        """Return the members whose reports come: a process that was stopped is connected for a while, and says nothing.

        One that another peer has lost must have reported since; and one that pauses counts as silent.
        """
        oldest = self._clock() - TIMEOUTS.report_silence
        return [m for m in self.online() if m.heard > max(oldest, m.suspected) and not m.is_paused]

    def ready(self) -> list[Member]:
        """Return the members that can be given work: reports come, their profile is known, and they want to stay."""
        return [
            member
            for member in self.heard()
            if member.is_listed
            and member.report is not None
            and member.report.state != "measuring"
            and not member.report.leaving
            and not self.is_unfit(member)
        ]

    def is_unfit(self, member: Member) -> bool:
        """Whether the member's version does not work together with this coordinator's."""
        return distance(self._version, member.version) is Distance.FAR

    def leaving(self, peers: tuple[str, ...]) -> list[str]:
        """Return those of `peers` that want to leave."""
        found = (self.get(peer) for peer in peers)
        return [member.peer for member in found if member and member.online and member.report and member.report.leaving]

    def paused(self, peers: Collection[str] | None = None) -> list[str]:
        """Return the members that pause; where `peers` are given, those of them."""
        return [member.peer for member in self.online() if member.is_paused and (peers is None or member.peer in peers)]

    def settled(self) -> list[str]:
        """Return the peers that are ready; as long as others are still coming, those alone that came a while ago: peers
        arrive in bursts, and who never gets ready keeps nobody out."""
        coming = any(
            m.report is None or not m.is_listed or m.report.state == "measuring"
            for m in self.heard()
            if not self.is_unfit(m)
        )
        came = self._clock() - (TIMEOUTS.arrival if coming else 0.0)
        return [member.peer for member in self.ready() if member.came <= came]

    def newcomers(self, known: Collection[str]) -> list[str]:
        """Return the settled peers that are not among `known`, sorted."""
        return sorted(set(self.settled()) - set(known))

    def waiting_for(self, needed: int) -> str:
        """Return in one line what is missing until `needed` nodes are ready."""
        ready, paused = len(self.ready()), self.paused()
        unfit = sum(self.is_unfit(member) for member in self.online())
        online = [m for m in self.online() if not m.is_paused and not self.is_unfit(m)]
        unlisted = [m for m in online if not m.is_listed and m.report is not None and m.report.state != "measuring"]
        heard = {member.peer for member in self.heard()}
        silent = [m for m in online if m.report is not None and m.peer not in heard and m not in unlisted]
        measuring = len(online) - ready - len(unlisted) - len(silent)
        parts = [f"{ready} of {needed} are ready"]
        if paused:
            parts.append(f"{len(paused)} paused")
        if unfit:
            parts.append(f"{unfit} of a version that does not work with this one")
        if silent:
            parts.append(f"{len(silent)} not heard of for {TIMEOUTS.report_silence:.0f} s")
        if measuring:
            parts.append(f"{measuring} measuring")
        if unlisted:
            # Connected to the broker but absent from the DHT: it sees other DHT peers than this coordinator.
            parts.append(f"{len(unlisted)} connected, but not seen in the DHT yet")
        return f"waiting for {needed - ready} more nodes ({'; '.join(parts)})"

    def missing(self, peers: tuple[str, ...]) -> list[str]:
        """Those of `peers` who are not connected, or have said nothing for long."""
        oldest = self._clock() - TIMEOUTS.cut_off

        def here(member: Member | None) -> bool:
            return member is not None and member.is_here and (member.report is None or member.heard > oldest)

        return [peer for peer in peers if not here(self.get(peer))]

    def broken(self, peers: tuple[str, ...], plan_version: int) -> Member | None:
        """Return one of `peers` that cannot go on under this plan; None if all can."""
        for peer in peers:
            member = self.get(peer)
            report = member.report if member else None
            if report and report.plan_version == plan_version and report.state in {"stalled", "diverged"}:
                return member
        return None
