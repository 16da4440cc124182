"""Which frames a step brings to a peer, and how large they are. Pure: a function of plan, job and peer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.commit import VOTE_LIMIT, Ballot
from dtfm_protocol.codecs import payload_bytes
from dtfm_protocol.frames import Key, Kind
from dtfm_protocol.job import Training
from dtfm_protocol.plan import Plan


@dataclass(frozen=True, slots=True)
class Expected:
    """A frame that is due: who sends it, its key, and its payload's bytes (an upper bound where not `exact`)."""

    sender: str
    key: Key
    size: int
    exact: bool = True


def step_frames(
    plan: Plan, me: str, step: int, training: Training, hidden_size: int, buckets: Iterable[Bucket]
) -> Iterator[Expected]:
    """The tensors of one training step: activations, gradients, parts of the all-reduce."""
    stage = plan.stage_of(me)
    assert stage is not None
    shape = (training.micro_batch, training.sequence_length, hidden_size)
    activation, gradient = payload_bytes(plan.wire.activations, shape), payload_bytes(plan.wire.gradients, shape)
    for index in plan.micro_batches(me):
        route = plan.routes[index]
        if stage > 0:
            yield Expected(route[stage - 1], Key(Kind.ACTIVATION, step, index), activation)
        if stage < len(plan.stages) - 1:
            yield Expected(route[stage + 1], Key(Kind.GRADIENT, step, index), gradient)
    for bucket in buckets:
        own = bucket.holders.index(me)
        sizes = [payload_bytes(plan.wire.gradients, (high - low,)) for low, high in bucket.parts]
        for index, peer in enumerate(bucket.holders):
            if peer != me:
                yield Expected(peer, Key(Kind.PART, step, own, bucket.group), sizes[own])
                yield Expected(peer, Key(Kind.REDUCED, step, index, bucket.group), sizes[index])


def evaluation_frames(
    plan: Plan, me: str, step: int, batches: list[int], sequence_length: int, hidden_size: int
) -> Iterator[Expected]:
    """The activations of one evaluation; `batches` are the sequences of each of its micro-batches."""
    stage = plan.stage_of(me)
    assert stage is not None
    for index, batch in enumerate(batches):
        route = plan.routes[index % len(plan.routes)]
        if route[stage] == me and stage > 0:
            size = payload_bytes(plan.wire.activations, (batch, sequence_length, hidden_size))
            yield Expected(route[stage - 1], Key(Kind.EVALUATION, step, index), size)


def ballot_frames(plan: Plan, me: str, step: int, ballot: Ballot) -> Iterator[Expected]:
    """Everyone's votes for the arbiter; the arbiter's commit for everyone else."""
    arbiter = arbiter_of(plan)
    if me == arbiter:
        for peer in plan.peers:
            if peer != me:
                yield Expected(peer, Key(Kind.VOTE, step, ballot), VOTE_LIMIT, exact=False)
    else:
        yield Expected(arbiter, Key(Kind.COMMIT, step, ballot), VOTE_LIMIT, exact=False)


def arbiter_of(plan: Plan) -> str:
    """The peer that makes steps final: the first of the plan's fixed order."""
    return plan.peers[0]
