"""Rule by which a step becomes final: every peer votes that it holds its share, the arbiter answers all with one
commit.

Pure: votes in, a commit out. Sums run in the plan's fixed order, so the clip norm has the same bits for every peer.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.ballot import Ballot, Commit, SetSums, Vote
from dtfm_protocol.plan.mark import LayerRange
from dtfm_protocol.plan.reductions import SHARED_BUCKETS
from dtfm_protocol.plan.state_vote import StateVote, Votes

Subject = Literal["reduced", "shared", "sum_squares", "state"]
"""What holders of the same buckets may differ in: a field of their votes."""
_WORDS: dict[Subject, str] = {
    "reduced": "the reduced gradients of their stage",
    "shared": "the reduced gradients of the embeddings that they share",
    "sum_squares": "the sums of squares of the same gradients",
    "state": "the state that the same steps have led to",
}
STATES_KEPT = 4
"""Number of the newest states of each peer of which an arbiter knows the digests: replicas are not through with hashing
at the same time."""


class Disputed(Exception):
    """Error: holders of the same gradients or state have voted unlike things, so one of them lies; the votes do not
    tell who, unless it is one peer that has said two things of one state."""

    def __init__(self, over: Subject, peers: tuple[str, ...], evidence: Votes = ()) -> None:
        super().__init__(f"{', '.join(map(short, peers))} differ in {_WORDS[over]}")
        self.over = over
        self.peers = peers
        """Holders of what they differ in."""
        self.evidence = evidence
        """Two signed votes on one part of a state that contradict each other, where they differ in a state."""


class StateAgreement:
    """Votes on states that one plan has led to, over its steps: others are not its arbiter's business.

    Args:
        plan: version of the plan.
        stages: peers of each of its stages, by the stage's layers: they alone have a say in these.
    """

    def __init__(self, plan: int, stages: Mapping[LayerRange, Collection[str]]) -> None:
        self._plan, self._stages = plan, stages
        self._said: defaultdict[str, deque[StateVote]] = defaultdict(lambda: deque(maxlen=STATES_KEPT))

    def hear(self, vote: StateVote) -> tuple[StateVote, ...]:
        """Take a vote, whose signature was checked; return the votes on the same part that contradict it, where there
        are any the one of the same peer first."""
        if vote.mark.plan != self._plan or vote.peer not in self._stages.get(vote.layers, ()):
            return ()
        differ = [
            one
            for states in self._said.values()
            for one in states
            if one.subject == vote.subject and one.digest != vote.digest
        ]
        said = self._said[vote.peer]
        if vote not in said:
            said.append(vote)
        return tuple(sorted(differ, key=lambda one: one.peer != vote.peer))


class Arbiter:
    """Count of the votes on one ballot of one step. Each vote is judged alone: what is wrong is its sender's fault.
    When all are in, those of replicas are held against each other."""

    def __init__(
        self,
        due: Mapping[str, Collection[int]],
        replicas: Sequence[Sequence[str]] | None = None,
        follows: str = "",
        states: StateAgreement | None = None,
        ballot: Ballot = Ballot.STEP,
        sets: Sequence[Mapping[int, int]] = (),
        *,
        durations: int = 0,
        learned: bool = True,
    ) -> None:
        """Await the votes of all peers of `due`, in the plan's order, each with the losses of just these micro-batches
        (`losses_due`).

        Args:
            replicas: the peers of each stage; None: each peer is the only one of its stage.
            follows: digest of the commit that all votes must follow.
            states: what was voted of states at earlier steps of the plan; None: nothing.
            sets: of an evaluation on sets, the number of targets of each micro-batch of each set, by its index: votes
                bring how many of them were foretold, too.
            durations: number of durations that each vote on a step may bring (`durations_due`).
            learned: whether the step has targets, and so gradients.
        """
        self._due = {peer: frozenset(indices) for peer, indices in due.items()}
        self._stages = [tuple(peers) for peers in (replicas if replicas is not None else ((peer,) for peer in due))]
        self._follows = follows
        self._states = states or StateAgreement(0, {})
        self._has_gradients = ballot is Ballot.STEP and learned
        self._ballot = ballot
        self._durations = durations if self._has_gradients else 0
        self._sets = tuple(sets)
        self._most_right = {index: most for one in sets for index, most in one.items()}
        self.votes: dict[str, Vote] = {}
        """Votes that were counted, by peer."""

    def take(self, peer: str, vote: Vote) -> Commit | None:
        """Count a vote, and return the commit once all are in, None before.

        Raises:
            Refused: a stranger's vote, a second one, one that follows another commit, with numbers that none has that
                has not diverged, with other losses, or counts of foretold tokens, than this peer's, of buckets that are
                not its own, or of gradients on a ballot that is not on a step, with another peer's vote on a state, or
                with durations of its actions that are not due; it changes nothing.
            Disputed: all are in, and holders of the same gradients have voted unlike things.
        """
        if peer not in self._due or peer in self.votes:
            raise Refused("a vote that is not due")
        if vote.follows != self._follows:
            raise Refused(f"a vote of {short(peer)} that follows another commit")
        if vote.losses.keys() != self._due[peer]:
            wrong = min(vote.losses.keys() ^ self._due[peer])
            what = "no loss" if wrong in self._due[peer] else "a loss that is not its own,"
            raise Refused(f"a vote of {short(peer)} with {what} of micro-batch {wrong}")
        if vote.right.keys() != (vote.losses.keys() if self._sets else set()):
            raise Refused(f"a vote of {short(peer)} with counts that are not due, or without such that are")
        if any(right > self._most_right[index] for index, right in vote.right.items()):
            raise Refused(f"a vote of {short(peer)} with more foretold tokens than there are")
        if not vote.is_plausible:
            raise Refused(f"a vote of {short(peer)} with numbers beyond all bounds")
        if (vote.shared or _shared(vote)) and peer not in self._ends:
            raise Refused(f"a vote of {short(peer)} on embeddings that are not its own")
        if vote.state is not None and vote.state.peer != peer:
            raise Refused(f"a vote of {short(peer)} with a vote on a state that is not its own")
        on_gradients = vote.reduced or vote.shared or vote.sum_squares
        if (on_gradients and not self._has_gradients) or (vote.state and self._ballot is not Ballot.STEP):
            raise Refused(f"a vote of {short(peer)} on gradients, where there are none")
        if vote.durations and len(vote.durations) != self._durations:
            raise Refused(
                f"a vote of {short(peer)} with {len(vote.durations)} durations of its actions, not {self._durations}"
            )
        self.votes[peer] = vote
        if len(self.votes) < len(self._due):
            return None
        self._compare()
        votes = [self.votes[name] for name in self._due]
        return Commit(
            loss=math.fsum(loss for one in votes for loss in one.losses.values()),
            grad_norm=math.sqrt(math.fsum(self._squares())),
            bytes_sent=sum(one.bytes_sent for one in votes),
            sets=tuple(self._sums(one, votes) for one in self._sets),
        )

    @staticmethod
    def _sums(micro_batches: Collection[int], votes: Sequence[Vote]) -> SetSums:
        """Return what all votes say of one set."""
        losses = [loss for one in votes for index, loss in one.losses.items() if index in micro_batches]
        right = (count for one in votes for index, count in one.right.items() if index in micro_batches)
        return SetSums(loss=math.fsum(losses), right=sum(right))

    @property
    def _ends(self) -> tuple[str, ...]:
        """Peers of the first stage and the last: those of shared buckets, if there are any."""
        return self._stages[0] if len(self._stages) == 1 else self._stages[0] + self._stages[-1]

    def _compare(self) -> None:
        for peers in self._stages:
            self._agree("reduced", peers, [self.votes[peer].reduced for peer in peers])
        self._agree("shared", self._ends, [self.votes[peer].shared for peer in self._ends])
        for peers in self._stages:
            self._agree("sum_squares", peers, [self.votes[peer].sum_squares for peer in peers])
        self._agree("sum_squares", self._ends, [_shared(self.votes[peer]) for peer in self._ends])
        for peer, vote in self.votes.items():
            if vote.state is not None and (others := self._states.hear(vote.state)):
                differ = {peer} if others[0].peer == peer else {peer, *(one.peer for one in others)}
                raise Disputed("state", tuple(name for name in self._due if name in differ), (others[0], vote.state))

    @staticmethod
    def _agree(over: Subject, peers: tuple[str, ...], values: Sequence[object]) -> None:
        if any(value != values[0] for value in values):
            raise Disputed(over, peers)

    def _squares(self) -> list[float]:
        """Sums of squares, each bucket's once: all its holders have voted the same."""
        found = [
            value
            for peers in self._stages
            for group, value in self.votes[peers[0]].sum_squares.items()
            if group not in SHARED_BUCKETS
        ]
        return found + list(_shared(self.votes[self._stages[0][0]]).values())


def _shared(vote: Vote) -> dict[int, float]:
    return {group: value for group, value in vote.sum_squares.items() if group in SHARED_BUCKETS}
