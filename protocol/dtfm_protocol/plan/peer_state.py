"""The state of a peer: under which plans it may still act, and which states of the model it holds."""

from typing import Annotated

from pydantic import Field

from dtfm_protocol.bounds import PeerName, Version
from dtfm_protocol.plan.mark import LayerRange as LayerRange
from dtfm_protocol.plan.mark import Mark as Mark
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.state_vote import Votes
from dtfm_protocol.schema import Schema

HOLDINGS_LIMIT = 32
"""Holdings of which one message may tell."""


class Holding(Schema):
    """A part of a state that a peer can give to others."""

    mark: Mark
    layers: LayerRange
    """Decoder layers `[first, end)`; with the first one goes the embedding, with the last one norm and head."""
    live: bool = False
    """Whether the part is in the peer's memory; else it is in a file."""
    commit: SignedCommit | None = None
    """The commit that made the state final, of which the next plan must know that it is genuine, and others the norm to
    apply its step, too."""
    prepared: Mark | None = None
    """The state that the part becomes when the reduced gradients that the peer holds are applied."""
    votes: Votes = ()
    """The peer's own vote on the part, and those that came with a copy."""


class Promise(Schema):
    """The word by which a peer has bound itself; on disk before anyone hears of it, so that it outlives the peer's
    process.

    Promises make a new plan the only one: a peer acts under no plan older than `version`, and takes a plan of that
    version from `to` alone. A peer that still acts under an older one stops first, and then promises.
    """

    version: Version = 0
    to: PeerName = ""
    """The coordinator that called for the version."""
    accepted: Version = 0
    """Version of the newest plan that the peer has taken; it binds once most of its electors have taken it."""


class PeerState(Schema):
    """The promise and the holdings of a peer: all that a new plan must know of it."""

    promise: Promise = Promise()
    holdings: Annotated[tuple[Holding, ...], Field(max_length=HOLDINGS_LIMIT)] = ()
