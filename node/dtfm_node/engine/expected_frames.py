"""Frames that a step brings to a peer, and their sizes. Pure: a function of plan, job and peer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dtfm_node.engine.buckets import Bucket
from dtfm_node.engine.frame_seals import SEAL_BYTES
from dtfm_node.engine.step_messages import (
    StepMessage,
    ballot_messages,
    boundary_messages,
    evaluation_messages,
    part_codec,
    received,
    reduction_messages,
)
from dtfm_protocol.job.job_file import CodecName, Training
from dtfm_protocol.plan.ballot import VOTE_LIMIT, Ballot
from dtfm_protocol.plan.plan import Plan
from dtfm_protocol.plan.signed_commit import COMMIT_LIMIT, SIGNATURE_BYTES
from dtfm_protocol.wire.codecs import payload_bytes
from dtfm_protocol.wire.frames import Key, Kind


@dataclass(frozen=True, slots=True)
class ExpectedFrame:
    """Frame that is due: its sender, its key, and its payload's bytes (an upper bound where not `exact`)."""

    sender: str
    key: Key
    size: int
    exact: bool = True


def step_frames(
    plan: Plan, me: str, step: int, training: Training, hidden_size: int, buckets: Iterable[Bucket]
) -> Iterator[ExpectedFrame]:
    """Yield the frames of one training step that carry tensors: activations, gradients, parts of the all-reduce."""
    shape = (training.micro_batch, training.sequence_length, hidden_size)
    for message in received(boundary_messages(plan, me), me):
        yield ExpectedFrame(message.sender, message.key(step), payload_bytes(_codec(plan, message), shape))
    for bucket in buckets:
        elements = [high - low for low, high in bucket.parts]
        for message in received(reduction_messages(bucket, me), me):
            size = payload_bytes(part_codec(bucket, message), (elements[message.index],))
            seal = SEAL_BYTES if message.kind is Kind.REDUCED else 0
            yield ExpectedFrame(message.sender, message.key(step), size + seal)


def evaluation_frames(
    plan: Plan, me: str, step: int, batches: Sequence[int], sequence_length: int, hidden_size: int
) -> Iterator[ExpectedFrame]:
    """Yield the frames of one evaluation; `batches` has the number of sequences of each of its micro-batches."""
    for message in received(evaluation_messages(plan, me, len(batches)), me):
        size = payload_bytes(_codec(plan, message), (batches[message.index], sequence_length, hidden_size))
        yield ExpectedFrame(message.sender, message.key(step), size)


def _codec(plan: Plan, message: StepMessage) -> CodecName:
    """Return the codec in which a message crosses its boundary."""
    route = plan.routes[message.index % len(plan.routes)]
    receiver = route.index(message.receiver)
    if message.kind is Kind.GRADIENT:
        return plan.boundary_wire(receiver).gradients
    return plan.boundary_wire(receiver - 1).activations


def ballot_frames(plan: Plan, me: str, step: int, ballot: Ballot) -> Iterator[ExpectedFrame]:
    """Yield the frames of a ballot: everyone's votes for the arbiter, the arbiter's commit for everyone else."""
    for message in received(ballot_messages(plan, me, ballot), me):
        limit = VOTE_LIMIT if message.kind is Kind.VOTE else COMMIT_LIMIT
        yield ExpectedFrame(message.sender, message.key(step), SIGNATURE_BYTES + limit, exact=False)
