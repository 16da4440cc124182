"""Commits of an arbiter for tests that need genuine ones, and plans that have it for their ancestors' arbiter."""

from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.ballot import Commit
from dtfm_protocol.plan.lineage import Ancestor
from dtfm_protocol.plan.peer_state import Mark
from dtfm_protocol.plan.signed_commit import SignedCommit
from tests.harness.membership import SWARM
from tests.harness.named_peers import identity_of

ARBITER = identity_of("arbiter")
SIGNER = Signer(identity_of("somebody"), SWARM)
"""Checks signatures of peers that go by their peer ids."""


def final(mark: Mark, norm: float = 1.0, by: Identity = ARBITER) -> SignedCommit:
    """The commit that made `mark` final, always the same for the same values."""
    return SignedCommit.made(by, SWARM, mark.plan, mark.step, Commit(grad_norm=norm))


def ancestors(*begun: tuple[int, Mark], arbiter: str = ARBITER.peer_id) -> tuple[Ancestor, ...]:
    """Plans of the past by version and first state, one stage each, all with the same arbiter."""
    return tuple(Ancestor(version=v, began=mark, stages=((0, 4),), replicas=((arbiter,),)) for v, mark in begun)
