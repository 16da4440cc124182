"""Commits that one arbiter has signed, and whether they are one story. Pure.

Peers that apply unlike commits come to unlike states, and sign these, although none of them lies: the arbiter does.
"""

from collections import defaultdict
from collections.abc import Iterable

from dtfm_protocol.plan.ballot import Commit, read_ballot
from dtfm_protocol.plan.signed_commit import SignedCommit


def are_unlike(commits: Iterable[SignedCommit]) -> bool:
    """Whether an arbiter that has signed all of these, under one plan, has told peers different things: two commits of
    one step, or one that follows another than it has signed for the step before.

    Raises:
        Refused: one of them cannot be read.
    """
    known: defaultdict[int, set[str]] = defaultdict(set)
    for signed in commits:
        known[signed.step].add(signed.digest)
        if before := read_ballot(signed.text.encode(), Commit).before:
            known[signed.step - 1].add(before)
    return any(len(digests) > 1 for digests in known.values())
