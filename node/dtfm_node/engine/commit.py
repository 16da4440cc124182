"""Rule by which a step becomes final: every peer votes that it holds its share, the arbiter answers all with one
commit.

Pure: votes in, a commit out. Sums run in the plan's fixed order, so the clip norm has the same bits for every peer.
"""

import math
from enum import IntEnum
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from dtfm_protocol.errors import Refused
from dtfm_protocol.schema import Schema
from dtfm_protocol.wire.stream import Bytes

S = TypeVar("S", bound=Schema)

VOTE_LIMIT = 1 << 20
"""Bytes of the largest vote or commit message."""


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

    losses: dict[Annotated[int, Field(ge=0)], float] = Field(default_factory=dict)
    """Summed loss of each micro-batch, by its index, that this peer, of the last stage, computed."""
    sum_squares: dict[Annotated[int, Field(ge=0)], float] = Field(default_factory=dict)
    """Sum of squares of the reduced gradient's part that this peer owns, by bucket."""
    bytes_sent: Annotated[int, Field(ge=0)] = 0
    """Bytes that this peer sent since its last vote on a step."""


class Commit(Schema):
    """Message by which the arbiter makes final what was voted on."""

    loss: float = 0.0
    """Loss summed over micro-batches and their tokens."""
    grad_norm: float = 0.0
    seconds: float = 0.0
    bytes_sent: Annotated[int, Field(ge=0)] = 0
    """Bytes that all peers sent since their last votes on a step."""
    last: bool = False
    """Whether the plan ends with this step: a new one is coming, and nothing that is computed from here on counts."""
    kept: bool = False
    """Whether all hand in a checkpoint of this step: no new plan is possible for now."""


class Arbiter:
    """Count of the votes on one ballot of one step."""

    def __init__(self, peers: tuple[str, ...], micro_batches: int) -> None:
        self._peers = peers
        self._micro_batches = micro_batches
        """Number of losses that all votes together must bring."""
        self._votes: dict[str, Vote] = {}

    def take(self, peer: str, vote: Vote) -> Commit | None:
        """Count a vote, and return the commit once all are in, None before.

        Raises:
            Refused: a stranger's vote, a second one, or losses that do not cover every micro-batch once.
        """
        if peer not in self._peers or peer in self._votes:
            raise Refused("a vote that is not due")
        self._votes[peer] = vote
        if len(self._votes) < len(self._peers):
            return None
        losses: dict[int, float] = {}
        for name in self._peers:
            for index, loss in self._votes[name].losses.items():
                if index in losses:
                    raise Refused(f"two losses for micro-batch {index}")
                losses[index] = loss
        if sorted(losses) != list(range(self._micro_batches)):
            raise Refused(f"losses of {len(losses)} micro-batches where {self._micro_batches} belong")
        squares = [value for name in self._peers for value in self._votes[name].sum_squares.values()]
        try:
            return Commit(
                loss=math.fsum(losses.values()),
                grad_norm=math.sqrt(math.fsum(squares)),
                bytes_sent=sum(vote.bytes_sent for vote in self._votes.values()),
            )
        except (ValueError, OverflowError):
            raise Refused("votes whose numbers have no sum, or no root") from None


def parse(data: Bytes, schema: type[S]) -> S:
    """Read a vote or commit.

    Raises:
        Refused: it is no valid message of `schema`, or has a NaN or an infinity in it.
    """
    try:
        return schema.model_validate_json(bytes(data))
    except ValidationError as error:
        raise Refused(f"{schema.__name__}: {error.errors()[0]['msg']}") from None
