"""Messages of a step: every one that a plan makes a peer send or await. Pure.

Senders and receivers both read it, so that what one peer sends is what the other has posted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dtfm_node.engine.buckets import Bucket
from dtfm_protocol.plan.ballot import Ballot
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.wire.frames import Key, Kind


@dataclass(frozen=True, slots=True)
class StepMessage:
    """Message of each step, sent in one frame: its kind, sender and receiver. Index and group are as in `Key`."""

    kind: Kind
    index: int
    sender: str
    receiver: str
    group: int = 0

    def key(self, step: int) -> Key:
        """Return the message's key in one step."""
        return Key(self.kind, step, self.index, self.group)


def share_of(plan: Plan, peer: str, micro_batches: int) -> tuple[int, ...]:
    """Return the indices, of the first `micro_batches`, of those that go through `peer`, ascending; the plan's routes
    repeat."""
    routes = plan.routes
    return tuple(index for index in range(micro_batches) if peer in routes[index % len(routes)])


def boundary_messages(plan: Plan, peer: str) -> list[StepMessage]:
    """Return the activations and gradients of a training step that `peer` sends or receives, by micro-batch."""
    found = []
    for index in share_of(plan, peer, len(plan.routes)):
        for before, after in _boundaries(plan, peer, index):
            found.append(StepMessage(Kind.ACTIVATION, index, before, after))
            found.append(StepMessage(Kind.GRADIENT, index, after, before))
    return found


def evaluation_messages(plan: Plan, peer: str, micro_batches: int) -> list[StepMessage]:
    """Return the activations that `peer` sends or receives in an evaluation of `micro_batches` micro-batches."""
    return [
        StepMessage(Kind.EVALUATION, index, before, after)
        for index in share_of(plan, peer, micro_batches)
        for before, after in _boundaries(plan, peer, index)
    ]


def _boundaries(plan: Plan, peer: str, index: int) -> list[tuple[str, str]]:
    """Return the pairs of peers on both sides of the boundaries at which micro-batch `index` comes to `peer`, and
    leaves it."""
    route = plan.routes[index % len(plan.routes)]
    stage = route.index(peer)
    return [(route[at - 1], route[at]) for at in (stage, stage + 1) if 0 < at < len(route)]


def reduction_messages(bucket: Bucket, peer: str) -> list[StepMessage]:
    """Return the parts of a bucket that `peer`, one of its holders, sends or receives: first all sums, then all totals.

    Every holder sends each owner of a part its own sum of it, and every owner then sends each other holder the total.
    """
    own, owners = bucket.holders.index(peer), bucket.reduction.owners
    others = [other for other in bucket.holders if other != peer] if own in owners else []
    theirs = [(index, bucket.holders[index]) for index in owners if index != own]
    return [
        *(StepMessage(Kind.PART, index, peer, owner, bucket.group) for index, owner in theirs),
        *(StepMessage(Kind.PART, own, other, peer, bucket.group) for other in others),
        *(StepMessage(Kind.REDUCED, own, peer, other, bucket.group) for other in others),
        *(StepMessage(Kind.REDUCED, index, owner, peer, bucket.group) for index, owner in theirs),
    ]


def ballot_messages(plan: Plan, peer: str, ballot: Ballot) -> list[StepMessage]:
    """Return the votes and commits that `peer` sends or receives: everyone's vote to the arbiter, its commit to
    everyone."""
    arbiter = arbiter_of(plan)
    voters = [voter for voter in plan.peers if voter != arbiter and peer in (voter, arbiter)]
    votes = [StepMessage(Kind.VOTE, ballot, voter, arbiter) for voter in voters]
    return votes + [StepMessage(Kind.COMMIT, ballot, arbiter, voter) for voter in voters]


def losses_due(plan: Plan, micro_batches: int) -> dict[str, tuple[int, ...]]:
    """Return the micro-batches, of the first `micro_batches`, whose losses each peer of the plan computes, by peer."""
    last = plan.replicas(len(plan.stages) - 1)
    return {peer: share_of(plan, peer, micro_batches) if peer in last else () for peer in plan.peers}


def replicas_of(plan: Plan) -> list[tuple[str, ...]]:
    """Return the peers of each stage."""
    return [plan.replicas(stage) for stage in range(len(plan.stages))]


def arbiter_of(plan: Plan) -> str:
    """Return the peer that makes steps final: the first in the plan's fixed order."""
    return plan.peers[0]


def sent(messages: Iterable[StepMessage], peer: str, kind: Kind | None = None) -> list[StepMessage]:
    """Return the messages that `peer` sends, of one kind or of all."""
    return [one for one in messages if one.sender == peer and kind in (None, one.kind)]


def received(messages: Iterable[StepMessage], peer: str, kind: Kind | None = None) -> list[StepMessage]:
    """Return the messages that `peer` receives, of one kind or of all."""
    return [one for one in messages if one.receiver == peer and kind in (None, one.kind)]
