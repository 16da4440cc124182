"""Votes on steps, and the commits that answer them: what peers of a plan say of the steps that they make together."""

from enum import IntEnum
from operator import not_
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from dtfm_protocol.bounds import (
    MOST_BUCKETS,
    MOST_MICRO_BATCHES,
    MOST_PEERS,
    Count,
    Index,
    Loss,
    Norm,
    Seconds,
    printable,
)
from dtfm_protocol.errors import Refused
from dtfm_protocol.job.evaluation_set import MOST_SETS
from dtfm_protocol.plan.schedule_rules import MOST_MICROSECONDS
from dtfm_protocol.plan.state_vote import StateVote
from dtfm_protocol.schema import Schema

S = TypeVar("S", bound=Schema)

VOTE_LIMIT = 1 << 20
"""Bytes of the largest vote or commit message."""
MOST_LOSS = 1e15
"""Largest summed loss of a micro-batch, in nats. What is larger has diverged, or is made up: as all votes have such
bounds, their sums have an end, and no vote can spoil what the others bring."""
MOST_SQUARES = 1e30
"""Largest sum of squares of a bucket of the gradient."""
MOST_NEW_DURATIONS = 32
"""Peers whose new durations one commit brings: it has to fit into `COMMIT_LIMIT`."""
_Squares = Annotated[float, Field(ge=0, le=MOST_SQUARES)]
_MicroBatchLoss = Annotated[float, Field(ge=-MOST_LOSS, le=MOST_LOSS)]
_Group = Annotated[int, Field(ge=0, lt=MOST_BUCKETS)]
_Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""A SHA-256 in hexadecimal digits; "": of nothing."""
_Place = Annotated[int, Field(ge=0, lt=MOST_PEERS)]
ActionDurations = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_MICROSECONDS)], ...], Field(max_length=3)]
"""Microseconds of a peer's forward, of its backward and, where the schedule makes that an action of its own, of the
weights' gradients: each of one micro-batch, and of compute alone."""
NewDurations = Annotated[tuple[tuple[_Place, ActionDurations], ...], Field(max_length=MOST_NEW_DURATIONS)]
"""What the actions of some peers take now, each with its place in `Plan.peers`."""


class Ballot(IntEnum):
    """Subject of a vote, and index in the keys of vote and commit frames."""

    STEP = 0
    """Each peer votes that it holds the reduced gradients of the step."""
    EVALUATION = 1
    """Each peer votes that it has evaluated its share of the micro-batches."""
    START = 2
    """Each peer votes that it holds the state after the step that the plan resumes from."""


class Vote(Schema):
    """Message by which a peer says that it holds its share, with the numbers that the arbiter sums."""

    losses: dict[Index, _MicroBatchLoss] = Field(default_factory=dict, max_length=MOST_MICRO_BATCHES)
    """Summed loss of each micro-batch, by its index, that this peer, of the last stage, computed."""
    sum_squares: dict[_Group, _Squares] = Field(default_factory=dict, max_length=MOST_BUCKETS)
    """Sum of squares of the reduced gradient of each bucket that this peer holds, in the order of sums that all holders
    keep to: theirs are equal to the last bit."""
    bytes_sent: Annotated[int, Field(ge=0, le=1 << 50)] = 0
    """Bytes that this peer sent since its last vote on a step."""
    follows: _Digest = ""
    """Digest of the commit that this vote follows: that of the newest step under this plan, before the first step that
    on START; "" on START itself. So an arbiter that has told peers different things is found."""
    reduced: _Digest = ""
    """Root over the hashes of all reduced parts of the step, in the buckets of this peer's stage alone; replicas have
    the same."""
    right: dict[Index, Count] = Field(default_factory=dict, max_length=MOST_MICRO_BATCHES, exclude_if=not_)
    """Targets of each micro-batch of `losses` that the model foretold as the likeliest token; only in evaluations on
    sets."""
    shared: _Digest = ""
    """The same of the buckets that first and last stage share (tied embeddings); "" where there are none."""
    state: StateVote | None = None
    """This peer's vote on the newest part of a state that it has hashed: replicas' agree, whenever each is through. It
    is signed by itself, so that an arbiter has evidence where two contradict each other."""
    durations: ActionDurations = Field(default=(), exclude_if=not_)
    """What this peer's actions of the step have taken, in the median; (): it has not measured it. Only in votes on
    steps, under a plan that `follows_durations`."""

    @property
    def is_plausible(self) -> bool:
        """Whether the numbers that the peer has computed are finite, and no larger than any that has not diverged."""
        return all(abs(loss) <= MOST_LOSS for loss in self.losses.values()) and all(
            0 <= value <= MOST_SQUARES for value in self.sum_squares.values()
        )


class SetSums(Schema):
    """What all votes together say of one set of an evaluation."""

    loss: Loss
    """Loss summed over its micro-batches and their tokens."""
    right: Count
    """Targets of it that the model foretold as the likeliest token."""


class Commit(Schema):
    """Message by which the arbiter makes final what was voted on."""

    loss: Loss = 0.0
    """Loss summed over micro-batches and their tokens."""
    grad_norm: Norm = 0.0
    seconds: Seconds = 0.0
    bytes_sent: Count = 0
    """Bytes that all peers sent since their last votes on a step."""
    last: bool = False
    """Whether the plan ends with this step: a new one is coming, and nothing that is computed from here on counts."""
    kept: bool = False
    """Whether all hand in a checkpoint of this step: no new plan is possible for now."""
    votes: _Digest = ""
    """Root over all votes, as they were signed (`root_of_votes`)."""
    before: _Digest = ""
    """Digest of the commit before, as in `Vote.follows`."""
    sets: tuple[SetSums, ...] = Field(default=(), max_length=MOST_SETS, exclude_if=not_)
    """Sums of each set of the job, in its order; only in evaluations on sets."""
    durations: NewDurations = Field(default=(), exclude_if=not_)
    """New durations of some peers' actions: from the next step on all compute in the orders that are made of them. Only
    in commits on steps, under a plan that `follows_durations`."""


def read_ballot(data: bytes | bytearray | memoryview, schema: type[S]) -> S:
    """Read a vote or commit.

    Raises:
        Refused: it is no valid message of `schema`, or has a NaN or an infinity in it.
    """
    try:
        return schema.model_validate_json(bytes(data))
    except ValidationError as error:
        raise Refused(f"{schema.__name__}: {printable(error.errors()[0]['msg'])}") from None
