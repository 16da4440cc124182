"""Messages of a step: every one that a plan makes a peer send or await. Pure.

Senders and receivers both read it, so that what one peer sends is what the other has posted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dtfm_node.engine.buckets import Bucket
from dtfm_protocol.job.job_file import CodecName
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

    Along each part's tree a holder sends its parent its sum, and is sent those of its children; the total goes the
    other way. Where there are no trees, every owner of a part is the parent of all others.
    """
    one, holders, group = bucket.reduction, bucket.holders, bucket.group
    place = holders.index(peer)
    ways = [  # each: the part, who sends up, and to whom
        (index, sender, one.parent(index, sender))
        for index in one.owners
        for sender in (*one.children(index, place), *([place] if index != place else []))
    ]
    ups = [StepMessage(Kind.PART, index, holders[child], holders[parent], group) for index, child, parent in ways]
    downs = [StepMessage(Kind.REDUCED, index, holders[parent], holders[child], group) for index, child, parent in ways]
    return [*sent(ups, peer), *received(ups, peer), *sent(downs, peer), *received(downs, peer)]


def part_codec(bucket: Bucket, message: StepMessage) -> CodecName:
    """Return the codec of a message of `reduction_messages`."""
    if message.kind is Kind.REDUCED:
        return bucket.reduction.codec
    return bucket.reduction.part_codec(message.index, bucket.holders.index(message.sender))


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


def durations_due(plan: Plan) -> int:
    """Return how many durations of its actions a peer may vote with a step under `plan`."""
    return plan.pacing.kinds if plan.follows_durations and plan.pacing is not None else 0


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
