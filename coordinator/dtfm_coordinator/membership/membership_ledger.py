"""Ledger of the swarm's membership: which invites were made and used, who has entered with them, who is banned. Pure.

It is the sum of what has happened to it, entry by entry, so that entries of several coordinators can be merged in any
order; `LedgerFile` keeps them.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from dtfm_protocol.bounds import PeerName
from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.ban import Ban, subjects_of
from dtfm_protocol.identity.ban_ruling import BanRuling
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.enrolment import Certificate, EnrolmentRequest
from dtfm_protocol.identity.entry_token import MOST_USES, EntryToken, TokenId
from dtfm_protocol.schema import Schema

DAY_SECONDS = 86_400.0
CREDENTIAL_DAYS = 30.0
"""Days for which a credential is issued; a node that stays in the swarm has a new one made when half of it is over."""
MOST_MEMBERS = 10_000
"""Peers that are members at most, those included that never came back."""
MOST_OF_AN_ADDRESS = 64
"""Peers that one IP address enrols in a day: friction against one who makes up many."""


class Invited(Schema):
    """Entry: an invite was made."""

    kind: Literal["invited"] = "invited"
    token: TokenId
    uses: Annotated[int, Field(ge=1, le=MOST_USES)]
    expires: float
    """Unix seconds."""
    name: Annotated[str, Field(max_length=80)] = ""
    """Whom it is for, in the owner's words."""
    at: float = 0.0
    """Unix seconds when it was made; 0: not known."""


class Redeemed(Schema):
    """Entry: a peer has entered with an invite, or its credential was made anew."""

    kind: Literal["redeemed"] = "redeemed"
    token: TokenId
    peer: PeerName
    at: float
    """Unix seconds."""
    address: Annotated[str, Field(max_length=64)] = ""
    uses: Annotated[int, Field(ge=0, le=MOST_USES)] = 0
    """Nodes that the invite is for; 0: not known."""


class Revoked(Schema):
    """Entry: nobody else enters with an invite; those who have stay."""

    kind: Literal["revoked"] = "revoked"
    token: TokenId
    at: float = 0.0
    """Unix seconds; 0: not known."""


class Banned(Schema):
    """Entry: somebody is a member no more."""

    kind: Literal["banned"] = "banned"
    ban: Ban
    at: float = 0.0
    """Unix seconds; 0: not known."""


class Ruled(Schema):
    """Entry: a ban holds no more, or again."""

    kind: Literal["ruled"] = "ruled"
    ruling: BanRuling


class Kicked(Schema):
    """Entry: a peer is to be left out of plans until it comes back by itself."""

    kind: Literal["kicked"] = "kicked"
    peer: PeerName
    at: float
    """Unix seconds."""


class Trusted(Schema):
    """Entry: another coordinator's certificate, which has signed credentials of members."""

    kind: Literal["trusted"] = "trusted"
    certificate: Certificate


LedgerEntry = Annotated[Invited | Redeemed | Revoked | Banned | Ruled | Kicked | Trusted, Field(discriminator="kind")]


@dataclass
class MembershipLedger:
    """Sum of all entries."""

    invited: dict[str, Invited] = field(default_factory=dict)
    """Invites by token."""
    members: dict[str, Redeemed] = field(default_factory=dict)
    """Newest entry of each peer that has entered."""
    entered: dict[tuple[str, str], float] = field(default_factory=dict)
    """When each peer entered first with a token, Unix seconds; by token and peer."""
    uses: dict[str, int] = field(default_factory=dict)
    """For how many nodes tokens are, as far as that is known."""
    revoked: set[str] = field(default_factory=set)
    bans: dict[str, Ban] = field(default_factory=dict)
    """Bans by subject, whether they hold or not."""
    rulings: dict[str, BanRuling] = field(default_factory=dict)
    """The latest ruling on each subject on which there is one."""
    trusted: set[str] = field(default_factory=set)
    """Certificates of coordinators, DER in hexadecimal digits."""
    kicked: dict[str, float] = field(default_factory=dict)
    """When peers were kicked last, Unix seconds."""

    def add(self, entry: LedgerEntry) -> None:
        """Take an entry; a second time it changes nothing."""
        match entry:
            case Invited():
                self.invited.setdefault(entry.token, entry)
                self.uses[entry.token] = max(self.uses.get(entry.token, 0), entry.uses)
            case Redeemed():
                entry_of = (entry.token, entry.peer)
                self.entered[entry_of] = min(self.entered.get(entry_of, entry.at), entry.at)
                if entry.uses:
                    self.uses[entry.token] = max(self.uses.get(entry.token, 0), entry.uses)
                known = self.members.get(entry.peer)
                if known is None or known.at < entry.at:
                    self.members[entry.peer] = entry
            case Revoked():
                self.revoked.add(entry.token)
            case Banned():
                self.bans.setdefault(entry.ban.subject, entry.ban)
            case Ruled():
                if self.is_later(entry.ruling):
                    self.rulings[entry.ruling.subject] = entry.ruling
            case Trusted():
                self.trusted.add(entry.certificate)
            case Kicked():
                self.kicked[entry.peer] = max(self.kicked.get(entry.peer, 0.0), entry.at)

    def users(self, token: str) -> list[str]:
        """Return the peers that have entered with a token, in the order of entry; of one second, by peer id."""
        found = [one.peer for one in self.members.values() if one.token == token]
        return sorted(found, key=lambda peer: (self.entered[token, peer], peer))

    def names(self) -> dict[str, str]:
        """Return whom the invite was for with which each member has entered, by peer id: of invites for one node."""
        named = {one.token: one.name for one in self.invited.values() if one.name and one.uses == 1}
        return {one.peer: named[one.token] for one in self.members.values() if one.token in named}

    def surplus(self) -> list[tuple[str, str]]:
        """Return who has entered with an invite that was used up, as pairs of token and peer.

        That happens where it is redeemed at two coordinators which do not hear each other. Those who entered first
        stay, as many as the invite is for (`users`).
        """
        counts = Counter(one.token for one in self.members.values())
        full = (token for token, count in counts.items() if count > self.uses.get(token, count))
        extra = ((token, peer) for token in full for peer in self.users(token)[self.uses[token] :])
        return [(token, peer) for token, peer in extra if not self.is_banned(peer, token)]

    def is_banned(self, peer: str, token: str) -> bool:
        """Whether a peer, as far as it has entered with this token, is banned."""
        return any(map(self.is_ban, subjects_of(peer, token)))

    def is_ban(self, subject: str) -> bool:
        """Whether there is a ban on a subject that holds."""
        ruling = self.rulings.get(subject)
        return subject in self.bans if ruling is None else ruling.holds

    def is_later(self, ruling: BanRuling) -> bool:
        """Whether a ruling counts before the one that there is on its subject."""
        known = self.rulings.get(ruling.subject)
        return known is None or known.order < ruling.order

    def banned_members(self) -> frozenset[str]:
        """Peer ids of the members that are banned."""
        return frozenset(one.peer for one in self.members.values() if self.is_banned(one.peer, one.token))

    def admit(self, request: EnrolmentRequest, coordinators: Coordinators, address: str, now: float) -> Redeemed:
        """Return the entry by which the sender of a request, which verified, becomes a member.

        A member may ask again, whatever has become of its invite: its credential is made anew, once a day.

        Args:
            coordinators: who may have made invites. Those of a key that was replaced count as far as the ledger has
                them, so that nobody makes others with it.
            address: IP address from which the request comes.
            now: Unix seconds.

        Raises:
            Refused: it does not, with the reason for the person at the other end.
        """
        token, peer = request.token, request.peer
        if self.is_ban(f"entry:{token.id}{peer}"):
            raise Refused("others had entered with the invite before, and it was for no more: ask for a new one")
        if self.is_banned(peer, token.id):
            raise Refused(
                "the owner has banned this machine, or all that came with its invite, and alone can change that"
            )
        entry = Redeemed(token=token.id, peer=peer, at=now, address=address, uses=token.uses)
        known = self.members.get(peer)
        if known is not None and known.token == token.id:
            entry = entry.model_copy(update={"uses": 0})  # the token of who renews is not looked at
            return entry if now > known.at + DAY_SECONDS else known  # who asks all the time fills no ledger
        if token.by not in coordinators:
            self._check_former(token, coordinators)
        if token.id in self.revoked:
            raise Refused("the invite was taken back: ask the swarm's owner for a new one")
        if token.expires < now:
            raise Refused("the invite has expired: ask the swarm's owner for a new one")
        if len(self.users(token.id)) >= token.uses:
            whom = "1 machine, which has" if token.uses == 1 else f"{token.uses} machines, which have"
            raise Refused(f"the invite was for {whom} entered already: ask the swarm's owner for a new one")
        if len(self.members) >= MOST_MEMBERS:
            raise Refused("the swarm has no room for more members")
        recent = [one for one in self.members.values() if one.address == address and one.at > now - DAY_SECONDS]
        if len(recent) >= MOST_OF_AN_ADDRESS:
            raise Refused("too many nodes have entered from this address today: try again tomorrow")
        return entry

    def _check_former(self, token: EntryToken, coordinators: Coordinators) -> None:
        """Raises Refused where a token that nobody has made who coordinates now does not count."""
        if coordinators.succession_of(token.by) is None:
            raise Refused("the invite is another swarm's: ask the owner of this one for an invite")
        made = self.invited.get(token.id)
        if made is None or (made.uses, made.expires) != (token.uses, token.expires):
            raise Refused("the invite is from before the coordinator's key was replaced: ask the owner for a new one")
