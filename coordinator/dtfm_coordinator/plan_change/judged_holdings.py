"""Judgement of what peers say that they hold: a holding counts only where the plans that coordinators signed say that
its peer may have it, and where the arbiter's commit, or a later plan, says that its state was final. The arbiter's word
does not do alone: somebody else of its plan must have come to that step, too. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.peer_state import Holding, LayerRange, Mark, PeerState
from dtfm_protocol.plan.signed_commit import SignedCommit

IsSigned = Callable[[SignedCommit, str], bool]
"""Function that tells whether a commit is one that this peer, as the arbiter, has signed for this swarm."""


NOT_ALONG = "a state that does not lie along the chain of plans"
AHEAD = "a step to which no other peer of its plan than the arbiter has come"


class Copy(NamedTuple):
    """A part of a state that a peer has, or makes by applying the gradients that it holds."""

    peer: str
    mark: Mark
    layers: LayerRange
    live: bool = False
    """Whether it is in the peer's memory."""
    commit: SignedCommit | None = None
    """The commit that made the state final, as this peer shows it."""
    is_prepared: bool = False
    """Whether the gradients of its step are to be applied first."""


class Refusal(NamedTuple):
    """What a peer says that it holds, or has signed as an arbiter, and why it is not believed."""

    peer: str
    what: Mark
    why: str

    @property
    def is_usual(self) -> bool:
        """Whether honest peers hold such things, too: what they had before the run went back, or they were away; or a
        step of which those who made it with them are gone."""
        return self.why in (NOT_ALONG, AHEAD)

    def __str__(self) -> str:
        return f"{short(self.peer)}, {self.what}: {self.why}"


class Judged(NamedTuple):
    """Copies that count, and holdings that do not."""

    copies: tuple[Copy, ...] = ()
    refused: tuple[Refusal, ...] = ()


def judge(standings: Mapping[str, PeerState], chain: Chain, is_signed: IsSigned, voted: int = 0) -> Judged:
    """Judge what peers hold.

    Args:
        standings: state of each peer, by peer id.
        chain: that of the newest plan that the next one follows.
        voted: newest step of that plan to which another of its peers than the arbiter has come, as votes prove.
    """
    copies: list[Copy] = []
    refused: list[Refusal] = []
    reached = max(voted, _reached(standings, chain))
    for peer, standing in standings.items():
        for holding in standing.holdings:
            why = _objection(peer, holding, chain, is_signed, reached)
            if why:
                refused.append(Refusal(peer, holding.mark, why))
            else:
                copies += _copies_of(peer, holding, chain)
    told, twice = _of_one_commit(copies, chain)
    return Judged(tuple(told), (*refused, *twice))


def _reached(standings: Mapping[str, PeerState], chain: Chain) -> float:
    """Return the newest step of the newest plan to which others than its arbiter say that they have come; infinite
    where it has no others."""
    if not chain.plans:
        return 0
    newest = chain.plans[-1]
    others = [peer for peers in newest.replicas for peer in peers if peer != newest.arbiter]
    told = (holding for peer in others if peer in standings for holding in standings[peer].holdings)
    marks = (mark for holding in told for mark in (holding.mark, holding.prepared) if mark is not None)
    return max((mark.step for mark in marks if mark.plan == newest.version), default=0) if others else math.inf


def _objection(peer: str, holding: Holding, chain: Chain, is_signed: IsSigned, reached: float) -> str:
    """Return why a holding does not count; "" if it does."""
    mark, commit = holding.mark, holding.commit
    if not chain.has(mark):
        return NOT_ALONG
    if not chain.grants(peer, mark, holding.layers, live=holding.live):
        return f"layers {holding.layers[0]} to {holding.layers[1]}, which no plan gave it"
    maker = chain.maker(mark)
    if maker is not None and commit is not None:
        # Whatever it shows must be genuine, for the norm goes by it.
        if (commit.plan, commit.step) != (mark.plan, mark.step) or not is_signed(commit, maker.arbiter):
            return f"a commit that {short(maker.arbiter)}, the arbiter, has not signed"
    elif chain.is_open(mark):
        return "no commit that says it was final"
    if maker is not None and chain.is_open(mark) and mark.step > reached:
        return AHEAD
    return ""


def _copies_of(peer: str, holding: Holding, chain: Chain) -> Iterator[Copy]:
    """Yield what a holding that counts is, and what it becomes when what is prepared is applied."""
    commit = holding.commit if chain.maker(holding.mark) is not None else None
    yield Copy(peer, holding.mark, holding.layers, holding.live, commit)
    becomes = holding.prepared
    if holding.live and becomes is not None and chain.maker(becomes) is not None:
        # Only who trains under the plan has its gradients.
        trained = next(one for one in chain.plans if one.version == becomes.plan).layers_of(peer)
        if trained == holding.layers:
            yield Copy(peer, becomes, holding.layers, live=True, is_prepared=True)


def _of_one_commit(copies: list[Copy], chain: Chain) -> tuple[list[Copy], list[Refusal]]:
    """Where an arbiter has signed two commits of one step, keep the copies of one: the one that a plan has gone on
    from, else the one that most show. What the others have applied is another state."""
    shown: dict[Mark, dict[str, set[str]]] = {}
    for copy in copies:
        if copy.commit is not None:
            shown.setdefault(copy.mark, {}).setdefault(copy.commit.digest, set()).add(copy.peer)
    if chain.commit is not None and chain.began in shown:
        shown[chain.began].setdefault(chain.commit.digest, set())
    counts: dict[Mark, str] = {}
    refused: list[Refusal] = []
    for mark, digests in shown.items():
        first = chain.commit.digest if chain.commit is not None and mark == chain.began else ""
        counts[mark] = min(digests, key=lambda digest: (digest != first, -len(digests[digest]), digest))
        maker = chain.maker(mark)
        if len(digests) > 1 and maker is not None:
            refused.append(Refusal(maker.arbiter, mark, "as the arbiter it signed two commits of this step"))
    kept = [copy for copy in copies if copy.commit is None or copy.commit.digest == counts[copy.mark]]
    return kept, refused
