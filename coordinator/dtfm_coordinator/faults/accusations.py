"""Accusations of peers by others, and what the next plans make of them. Pure.

A peer that refuses what another one sent says that it was no honest peer's. Nobody else has seen it: who of the two
lies cannot be told. So they are kept apart, and a liar, whichever it is, has to make an enemy of another peer to do it
again: whoever has fallen out with two is left out, and so is who has provably lied. One liar cannot take honest peers
away from the run one after the other: the second that it accuses is the last.

One new quarrel counts for each plan, the first that is heard of. So a lie that many peers see at once does not cost
all of them their good name, and each quarrel costs a liar its own: as many liars, as many honest peers at most are left
out. Where one of the two is left out already, the quarrel is held against that one alone.
"""

from collections import defaultdict
from typing import Annotated

from pydantic import Field

from dtfm_protocol.bounds import SEEN_LIMIT, PeerName, Version
from dtfm_protocol.schema import Schema

ENOUGH = 2
"""Peers with which somebody must have fallen out to be left out."""
Quarrel = frozenset[str]
"""Two peers, of which one has accused the other, or that contradict each other."""


class HeardQuarrel(Schema):
    """A quarrel as it is written down."""

    pair: Annotated[frozenset[PeerName], Field(min_length=2, max_length=2)]
    blamed: Annotated[frozenset[PeerName], Field(min_length=1, max_length=2)]
    """Those of the two against whom it is held."""
    ended: Version | None = None
    """Version of the plan that it has ended, where the two contradict each other; None: one has accused the other."""


class AccusationRecord(Schema):
    """All that is known of the accusations of a run, for the next process of its coordinator."""

    plan: Version = 0
    """Version of the newest plan that a quarrel has ended."""
    quarrels: Annotated[tuple[HeardQuarrel, ...], Field(max_length=SEEN_LIMIT)] = ()
    """Oldest first."""
    proven: Annotated[tuple[PeerName, ...], Field(max_length=SEEN_LIMIT)] = ()
    """Peers that have provably lied, oldest first."""


class Accusations:
    """Accusations of one run, as the coordinator heard them.

    Args:
        record: what was known before.
    """

    def __init__(self, record: AccusationRecord | None = None) -> None:
        known = record or AccusationRecord()
        self._quarrels: dict[Quarrel, frozenset[str]] = {one.pair: one.blamed for one in known.quarrels}
        """Those of the two against whom each quarrel is held, oldest first."""
        self._contradictions = {one.pair: one.ended for one in known.quarrels if one.ended is not None}
        """Those of the quarrels that are contradictions, with the version of the plan that each has ended."""
        self._plan = known.plan
        """Version of the newest plan that a quarrel has ended."""
        self._proven: dict[str, None] = dict.fromkeys(known.proven)
        """Peers that have provably lied, in the order in which that was seen."""

    @property
    def record(self) -> AccusationRecord:
        """All that is known."""
        quarrels = (
            HeardQuarrel(pair=pair, blamed=blamed, ended=self._contradictions.get(pair))
            for pair, blamed in self._quarrels.items()
        )
        return AccusationRecord(plan=self._plan, quarrels=tuple(quarrels), proven=tuple(self._proven))

    def reported(self, accuser: str, accused: str, plan: int) -> bool:
        """Take the word of a peer, under plan `plan`, that it refused what another one sent; True if that counts and
        is news.

        Who is left out has no say any more: whomever it accuses now may have done nothing.
        """
        return accuser not in self.left_out and self._is_new(frozenset((accuser, accused)), plan)

    def differed(self, pair: Quarrel, plan: int) -> bool:
        """Take the proof, under plan `plan`, that two peers contradict each other; True if that counts and is news."""
        if not self._is_new(pair, plan):
            return False
        self._contradictions[pair] = plan
        return True

    def excuse(self, plan: int) -> None:
        """Forget who contradicted each other under plan `plan`: a third peer has made them."""
        for pair in [pair for pair, when in self._contradictions.items() if when == plan]:
            del self._contradictions[pair], self._quarrels[pair]

    def _is_new(self, pair: Quarrel, plan: int) -> bool:
        """Whether a quarrel counts and is news; if so, it is taken.

        What is known already does not take the place of what is new: else a liar hides the one behind the other.
        """
        if len(pair) < 2 or plan <= self._plan or pair in self._quarrels:
            return False
        self._plan = plan
        self._quarrels[pair] = pair & self.left_out or pair
        if len(self._quarrels) > SEEN_LIMIT:
            oldest = next(iter(self._quarrels))
            del self._quarrels[oldest]
            self._contradictions.pop(oldest, None)
        return True

    def proven(self, peer: str) -> bool:
        """Take note that a peer has provably lied; True if that is news."""
        if peer in self._proven:
            return False
        self._proven[peer] = None
        if len(self._proven) > SEEN_LIMIT:
            del self._proven[next(iter(self._proven))]
        return True

    @property
    def apart(self) -> frozenset[Quarrel]:
        """Pairs of peers that have nothing to do with each other in the next plans, where such plans are possible."""
        return frozenset(self._quarrels)

    @property
    def left_out(self) -> frozenset[str]:
        """Peers that have no part in the next plans, where plans without them are possible."""
        others: dict[str, int] = defaultdict(int)
        for blamed in self._quarrels.values():
            for peer in blamed:
                others[peer] += 1
        return frozenset(self._proven) | {peer for peer, count in others.items() if count >= ENOUGH}
