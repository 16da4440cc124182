"""Votes on states that a coordinator has heard, and what they certify: which bits a part of a state has, or that its
replicas contradict each other. Pure.

Where all replicas of the stage that made a part have signed the same digest, the part is certified: whoever gives
other bytes for it lies. Where they have signed different ones, one of them lies or a machine has failed, and nobody can
tell which: no copy of the part is used.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.mark import LayerRange, Mark, StateDigest
from dtfm_protocol.plan.peer_state import Holding, PeerState
from dtfm_protocol.plan.state_vote import StateVote

Part = tuple[Mark, LayerRange]
ReplicasOf = Callable[[Mark, LayerRange], tuple[str, ...]]
"""Tells the replicas of the stage that made a part of a state, as `Chain.replicas_of`; none: not known, and nothing is
certified of it."""
Pairs = tuple[tuple[str, str], ...]
"""Peers that contradict each other, two by two."""
PARTS_A_PEER = 32
"""Parts of states of which one peer's votes are kept, the newest by plan and step, whenever they are heard: else who
brings old ones again has newer ones forgotten."""


class StateVerdict(NamedTuple):
    """What the votes on one part say."""

    digest: str = ""
    """Digest that is certified; "": none is."""
    disputed: bool = False
    """Whether its replicas contradict each other, so that no copy of it is to be used."""
    pairs: Pairs = ()
    """Those of them that do, by `at_odds`."""
    liars: tuple[str, ...] = ()
    """Those that have signed two digests of it, which is proof."""
    said: str = ""
    """What people are to know of it, in one line: who has signed what, or has not signed at all."""


class StateVotes:
    """Votes of replicas on parts of states."""

    def __init__(self) -> None:
        self._votes: dict[Mark, dict[LayerRange, dict[str, tuple[StateVote, ...]]]] = {}
        """Votes of each peer on each part: one, or two that contradict each other."""
        self._parts: dict[str, dict[Part, None]] = {}
        """Parts on which each peer has voted, in the order in which that was heard."""

    def wants(self, vote: StateVote, replicas_of: ReplicasOf) -> bool:
        """Whether a vote would tell something new if its signature is genuine: it is one of a replica of its part."""
        before = self._of(vote.mark, vote.layers).get(vote.peer, ())
        if len(before) > 1 or any(one.digest == vote.digest for one in before):
            return False
        parts = self._parts.get(vote.peer, {})
        if len(parts) >= PARTS_A_PEER and vote.subject not in parts and _age(vote.subject) < min(map(_age, parts)):
            return False
        return vote.peer in replicas_of(*vote.subject)

    def hear(self, vote: StateVote) -> None:
        """Take a vote that is wanted, and whose signature was checked."""
        before = self._of(vote.mark, vote.layers).get(vote.peer, ())
        self._votes.setdefault(vote.mark, {}).setdefault(vote.layers, {})[vote.peer] = (*before, vote)
        parts = self._parts.setdefault(vote.peer, {})
        parts[vote.subject] = None
        if len(parts) > PARTS_A_PEER:
            self._forget(vote.peer, min(parts, key=_age))

    def _of(self, mark: Mark, layers: LayerRange) -> Mapping[str, tuple[StateVote, ...]]:
        return self._votes.get(mark, {}).get(layers, {})

    def _forget(self, peer: str, part: Part) -> None:
        mark, layers = part
        del self._parts[peer][part], self._votes[mark][layers][peer]
        if not self._votes[mark][layers]:
            del self._votes[mark][layers]
        if not self._votes[mark]:
            del self._votes[mark]

    def __iter__(self) -> Iterator[StateVote]:
        """All votes, of each peer in the order in which its parts came."""
        for peer, parts in self._parts.items():
            for mark, layers in parts:
                yield from self._votes[mark][layers][peer]

    def verdict(self, mark: Mark, layers: LayerRange, replicas: Collection[str], here: Collection[str]) -> StateVerdict:
        """Return what the votes on a part say.

        Args:
            replicas: peers of the stage that made it.
            here: peers that answer. A replica that does, and has not voted, may yet contradict the others; one that is
                gone will not.
        """
        heard = self._of(mark, layers)
        votes = {peer: heard.get(peer, ()) for peer in replicas}
        twofold = sorted(peer for peer, cast in votes.items() if len(cast) > 1)
        digests = {peer: cast[0].digest for peer, cast in votes.items() if len(cast) == 1}
        what = f"layers {layers[0]} to {layers[1]} of {mark}"
        liars = f"{_names(twofold)} signed two states of {what}" if twofold else ""
        if len(set(digests.values())) > 1 or (twofold and not digests):
            each = ", ".join(f"{short(peer)}: {digest[:8]}" for peer, digest in sorted(digests.items()))
            differ = f"its replicas signed different states of {what} ({each})" if digests else ""
            said = "; ".join(filter(None, (liars, differ)))
            return StateVerdict("", True, at_odds(digests), tuple(twofold), f"{said}: no copy of it is used")
        silent = sorted(peer for peer, cast in votes.items() if not cast)
        if not digests or any(peer in here for peer in silent):
            return StateVerdict(liars=tuple(twofold), said=liars)
        gone = f"{_names(silent)} left without a vote on {what}: the others' votes count" if silent else ""
        said = "; ".join(filter(None, (liars, gone)))
        return StateVerdict(next(iter(digests.values())), liars=tuple(twofold), said=said)

    def newest_step(self, chain: Chain) -> int:
        """Return the newest step of the newest plan of which another of its peers than the arbiter has hashed the
        state; 0 where none has."""
        if not chain.plans:
            return 0
        newest = chain.plans[-1]
        others = {peer for replicas in newest.replicas for peer in replicas} - {newest.arbiter}
        steps = (
            mark.step
            for mark, parts in self._votes.items()
            if mark.plan == newest.version and any(not others.isdisjoint(voters) for voters in parts.values())
        )
        return max(steps, default=0)

    @property
    def parts(self) -> list[Part]:
        """Parts of states on which anybody has voted."""
        return [(mark, layers) for mark, parts in self._votes.items() for layers in parts]

    def parts_of(self, mark: Mark) -> list[LayerRange]:
        """Return the layers of the parts of the state `mark` on which anybody has voted."""
        return sorted(self._votes.get(mark, {}))


def without_disputed(
    standings: Mapping[str, PeerState], votes: StateVotes, replicas_of: ReplicasOf, say: Callable[[str], None]
) -> dict[str, PeerState]:
    """Return what peers hold without the copies of parts whose replicas contradict each other, and without what the
    same plan has made of these later; `say` is told of the parts."""
    held = {holding.mark for standing in standings.values() for holding in standing.holdings}
    disputed: list[Part] = []
    for mark, layers in votes.parts:
        if any(_comes_from(one, mark) for one in held):
            verdict = votes.verdict(mark, layers, replicas_of(mark, layers), standings.keys())
            if verdict.disputed:
                say(verdict.said)
                disputed.append((mark, layers))

    if not disputed:
        return dict(standings)

    def is_usable(holding: Holding) -> bool:
        low, high = holding.layers
        return not any(
            _comes_from(holding.mark, mark) and first < high and low < end for mark, (first, end) in disputed
        )

    return {
        peer: standing.model_copy(update={"holdings": tuple(filter(is_usable, standing.holdings))})
        for peer, standing in standings.items()
    }


def certified(
    mark: Mark, votes: StateVotes, replicas_of: ReplicasOf, here: Collection[str], say: Callable[[str], None]
) -> tuple[StateDigest, ...]:
    """Return the digests of the parts of the state `mark` that are certified; `say` is told what is to be known of
    them."""
    found = []
    for layers in votes.parts_of(mark):
        verdict = votes.verdict(mark, layers, replicas_of(mark, layers), here)
        if verdict.said:
            say(verdict.said)
        if verdict.digest:
            found.append(StateDigest(mark=mark, layers=layers, digest=verdict.digest))
    return tuple(found)


def votes_in(standing: PeerState) -> Iterable[StateVote]:
    """Return the votes that come with what a peer says it holds."""
    return (vote for holding in standing.holdings for vote in holding.votes)


def at_odds(digests: Mapping[str, str]) -> Pairs:
    """Return pairs of peers that have signed different digests: one of those whom fewest agree with, and each of those
    whom most do; none: all agree."""
    sides: dict[str, list[str]] = {}
    for peer, digest in sorted(digests.items()):
        sides.setdefault(digest, []).append(peer)
    ranked = sorted(sides.values(), key=len)
    return tuple((ranked[0][0], other) for other in ranked[-1]) if len(ranked) > 1 else ()


def _age(part: Part) -> tuple[int, int]:
    """Return the key by which parts are ordered, those that were made later last."""
    return part[0].plan, part[0].step


def _comes_from(mark: Mark, before: Mark) -> bool:
    """Whether the state of `mark` is that of `before`, or was made of it under the same plan."""
    return mark.plan == before.plan and mark.step >= before.step


def _names(peers: Iterable[str]) -> str:
    return ", ".join(map(short, peers))
