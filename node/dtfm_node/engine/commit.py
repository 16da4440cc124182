"""Rule by which a step becomes final: every peer votes that it holds its share, the arbiter answers all with one
commit.

Pure: votes in, a commit out. Sums run in the plan's fixed order, so the clip norm has the same bits for every peer.
"""

import math
from collections.abc import Collection, Mapping

from dtfm_protocol.errors import Refused
from dtfm_protocol.identity.keys import short
from dtfm_protocol.plan.ballot import Commit, Vote


class Arbiter:
    """Count of the votes on one ballot of one step. Each vote is judged alone: what is wrong is its sender's fault."""

    def __init__(self, due: Mapping[str, Collection[int]]) -> None:
        """Await the votes of all peers of `due`, in the plan's order, each with the losses of just these micro-batches
        (`losses_due`)."""
        self._due = {peer: frozenset(indices) for peer, indices in due.items()}
        self._votes: dict[str, Vote] = {}

    def take(self, peer: str, vote: Vote) -> Commit | None:
        """Count a vote, and return the commit once all are in, None before.

        Raises:
            Refused: a stranger's vote, a second one, one with numbers that none has that has not diverged, or with
                other losses than this peer's; it changes nothing.
        """
        if peer not in self._due or peer in self._votes:
            raise Refused("a vote that is not due")
        if vote.losses.keys() != self._due[peer]:
            wrong = min(vote.losses.keys() ^ self._due[peer])
            what = "no loss" if wrong in self._due[peer] else "a loss that is not its own,"
            raise Refused(f"a vote of {short(peer)} with {what} of micro-batch {wrong}")
        if not vote.is_plausible:
            raise Refused(f"a vote of {short(peer)} with numbers beyond all bounds")
        self._votes[peer] = vote
        if len(self._votes) < len(self._due):
            return None
        votes = [self._votes[name] for name in self._due]
        return Commit(
            loss=math.fsum(loss for one in votes for loss in one.losses.values()),
            grad_norm=math.sqrt(math.fsum(value for one in votes for value in one.sum_squares.values())),
            bytes_sent=sum(one.bytes_sent for one in votes),
        )
