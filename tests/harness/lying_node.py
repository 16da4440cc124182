"""A node that trains as all do, and signs other digests of its states than it has, or hands in nothing where `LIE` is
`silence`: the program `lying-node`."""

import hashlib
import os
from typing import Self

from dtfm_node.main import main as node
from dtfm_node.state.checkpoint_upload import CheckpointShare, CheckpointUpload
from dtfm_protocol.identity.signer import Signer
from dtfm_protocol.plan.mark import LayerRange, Mark
from dtfm_protocol.plan.state_vote import StateVote

honest = StateVote.made.__func__  # type: ignore[attr-defined]


def false(cls: type[Self], signer: Signer, mark: Mark, layers: LayerRange, digest: str) -> Self:
    """A vote for something else, with a genuine signature; the same each time."""
    return honest(cls, signer, mark, layers, hashlib.sha256(digest.encode()).hexdigest())  # type: ignore[no-any-return]


def forget(upload: CheckpointUpload, share: CheckpointShare) -> None:
    """Hand in nothing, and go on as if that were done."""


def main() -> None:
    """The command line of a node that lies."""
    if os.environ.get("LIE") == "silence":
        CheckpointUpload.put = forget  # type: ignore[method-assign]
    else:
        StateVote.made = classmethod(false)  # type: ignore[assignment, method-assign]
    node()


if __name__ == "__main__":
    main()
