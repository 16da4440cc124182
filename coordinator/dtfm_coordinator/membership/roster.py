"""Roster of a state folder: what members are called and who of them is here, and who is meant by a name."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dtfm_coordinator.membership.membership_ledger import MembershipLedger
from dtfm_protocol.bounds import printable
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.keys import called, short

MOST_TOLD = 8
"""Members, or invites, that are listed where any of them could be meant."""


class Roster(NamedTuple):
    """What is known of the members by others than the ledger."""

    names: Mapping[str, str]
    """What members are called, by peer id: whom the invite was for and what the machine's person calls it, with a comma
    between them. Anybody may take anybody's name."""
    here: frozenset[str]
    """Peer ids of those who were here when the coordinator last said so."""

    @classmethod
    def of(cls, folder: Path, ledger: MembershipLedger) -> "Roster":
        """Read what the coordinator has written last; where that cannot be read, only the ledger's names are known."""
        names, here = ledger.names(), set[str]()
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            shown = json.loads((folder / "status.json").read_text(encoding="utf-8"))["overview"]["members"]
            names |= {peer: printable(str(one["name"])) for peer, one in shown.items() if one["name"]}
            here |= {peer for peer, one in shown.items() if one["role"] != "gone"}
        return cls(names, frozenset(here))

    def member(self, ledger: MembershipLedger, wanted: str) -> str:
        """Return the peer id of the member that is meant.

        Args:
            ledger: has the members.
            wanted: a peer id, or the last characters of one, or a name; of who has two, either will do.

        Raises:
            UserError: it is nobody's, or could be several members'.
        """
        if wanted in ledger.members:
            return wanted
        found = [peer for peer in ledger.members if wanted and (peer.endswith(wanted) or self._is_called(peer, wanted))]
        if not found:
            raise UserError(f"{wanted!r} is no member: `dtfm-coordinator members` lists them")
        if len(found) > 1:
            is_plain = len({short(peer) for peer in found}) == len(found)
            told = [called(peer, self.names.get(peer, "")) if is_plain else peer for peer in found]
            raise UserError(f"{wanted!r} could be any of {len(found)} members, give the id of one: {_listed(told)}")
        return found[0]

    def _is_called(self, peer: str, wanted: str) -> bool:
        name = self.names.get(peer, "").casefold()
        return wanted.strip().casefold() in {name, *name.split(", ")} - {""}


def invite_meant(ledger: MembershipLedger, wanted: str) -> str:
    """Return the token of the invite that is meant by its token, or by the name of whom it is for.

    Raises:
        UserError: there is none, or there are several of that name.
    """
    if wanted in ledger.invited:
        return wanted
    named = [one for one in ledger.invited.values() if one.name and one.name.casefold() == wanted.strip().casefold()]
    found = [one.token for one in named if one.token not in ledger.revoked] or [one.token for one in named]
    if not found:
        raise UserError(f"there is no invite {wanted}: `dtfm-coordinator members` lists them")
    if len(found) > 1:
        raise UserError(f"there are {len(found)} invites for {wanted}, give the token of one: {_listed(found)}")
    return found[0]


def _listed(told: list[str]) -> str:
    more = f", and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    return ", ".join(told[:MOST_TOLD]) + more
