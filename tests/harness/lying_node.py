"""A node that trains as all do, and signs other digests of its states than it has: `python -m tests.harness.lying_node
join ...`."""

import hashlib
from typing import Self

from dtfm_node.main import main
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.mark import LayerRange, Mark
from dtfm_protocol.plan.state_vote import StateVote

honest = StateVote.made.__func__  # type: ignore[attr-defined]


def false(cls: type[Self], signer: Signer, mark: Mark, layers: LayerRange, digest: str) -> Self:
    """A vote for something else, with a genuine signature; the same each time."""
    return honest(cls, signer, mark, layers, hashlib.sha256(digest.encode()).hexdigest())  # type: ignore[no-any-return]


if __name__ == "__main__":
    StateVote.made = classmethod(false)  # type: ignore[assignment, method-assign]
    main()
