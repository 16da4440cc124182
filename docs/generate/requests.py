"""Requests that programs make of each other over streams of their own, and the schemas of what goes to and fro."""

from typing import NamedTuple

from pydantic import BaseModel

from dtfm_node.engine.step_evidence import RECEIPTS, VOTES, CastVotes, WantReceipts, WantVotes
from dtfm_protocol.checkpoint.base_transfers import BASE, WantBase
from dtfm_protocol.checkpoint.transfers import (
    CHECKPOINT,
    SHADOW,
    SHARDS,
    STATE,
    Catalogue,
    Deposit,
    HandIn,
    Receipt,
    TransferReply,
    WantCatalogue,
    WantPiece,
    WantShard,
)
from dtfm_protocol.control.contribution_record import ContributionStatement
from dtfm_protocol.control.member_requests import DESK, DeskAnswer, DeskRequest, WantPart
from dtfm_protocol.identity.enrolment import EnrolmentAnswer, EnrolmentRequest
from dtfm_protocol.plan.ballot import Commit, Vote
from dtfm_protocol.transport.hole_punching import SEEN
from dtfm_protocol.transport.simultaneous_open import OutsideAddress


class Request(NamedTuple):
    """A kind of request."""

    name: str
    """The service's name; "": it has none."""
    to: str
    """Who answers."""
    text: str
    schemas: tuple[type[BaseModel], ...]
    """What is sent and what is answered, in the order in which they come."""


REQUESTS = (
    Request("", "the coordinator's entrance", "A newcomer enrols.", (EnrolmentRequest, EnrolmentAnswer)),
    Request(
        DESK,
        "the coordinator's entrance",
        "A member asks what it has contributed, or for the model, file by file.",
        (DeskRequest, DeskAnswer, WantPart),
    ),
    Request(CHECKPOINT, "the coordinator", "A stage hands in its share of a checkpoint.", (HandIn, Receipt)),
    Request(SHARDS, "a member or the coordinator", "A piece of the text is fetched.", (WantShard, TransferReply)),
    Request(
        BASE, "a member or the coordinator", "Weights that the job begins with are fetched.", (WantBase, TransferReply)
    ),
    Request(
        STATE,
        "a member or the coordinator",
        "Parts of a state are fetched.",
        (WantCatalogue, Catalogue, WantPiece, TransferReply),
    ),
    Request(SHADOW, "a member", "A copy of a lone stage's state is given away.", (Deposit, Receipt)),
    Request(VOTES, "the arbiter", "A peer looks whether a commit says what was voted.", (WantVotes, CastVotes)),
    Request(RECEIPTS, "a peer of the stage", "The arbiter asks what it holds of a step's sums.", (WantReceipts,)),
    Request(SEEN, "a member", "A peer asks at which address it is seen, to make a hole.", (OutsideAddress,)),
)
INSIDE: tuple[type[BaseModel], ...] = (Vote, Commit, ContributionStatement)
"""What frames and signed texts hold."""
