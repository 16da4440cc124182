"""Check of commits' signatures, each once: peers show the same ones with every report."""

from functools import lru_cache

from dtfm_protocol.errors import Refused
from dtfm_protocol.plan.signed_commit import SignedCommit


@lru_cache(maxsize=4096)
def is_signed(swarm: str, commit: SignedCommit, arbiter: str) -> bool:
    """Whether `arbiter` has signed `commit` for `swarm`, and it can be read."""
    try:
        commit.opened(arbiter, swarm)
    except Refused:
        return False
    return True
