"""Check of commits' and votes' signatures, each once: peers show the same ones with every report."""

from collections.abc import Iterable
from functools import lru_cache

from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.lineage import Chain
from dtfm_protocol.plan.signed_commit import SignedCommit
from dtfm_protocol.plan.voted_step import VotedStep


@lru_cache(maxsize=4096)
def is_signed(swarm: str, commit: SignedCommit, arbiter: str) -> bool:
    """Whether `arbiter` has signed `commit` for `swarm`, and it can be read."""
    try:
        commit.opened(arbiter, swarm)
    except Refused:
        return False
    return True


def proven_step(swarm: str, chain: Chain, proofs: Iterable[VotedStep | None]) -> int:
    """Return the newest step of the newest plan on which all its peers have voted in `swarm`, as one of `proofs` shows;
    0 where none does."""
    if not chain.plans:
        return 0
    newest = chain.plans[-1]
    peers = tuple(peer for replicas in newest.replicas for peer in replicas)
    shown = (one for one in proofs if one is not None and one.plan == newest.version)
    return max((one.step for one in shown if _all_voted(swarm, one, peers)), default=0)


@lru_cache(maxsize=64)
def _all_voted(swarm: str, voted: VotedStep, peers: tuple[str, ...]) -> bool:
    try:
        voted.check(swarm, peers)
    except Refused:
        return False
    return True
